"""Jobs of operators: made and shown (`book`), taken under leases (`work`), run (`run`, `child`, `warming`), made by schedules (`cron`)."""
