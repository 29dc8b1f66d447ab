"""The resources of the admin API: one file each, one line each in the table of admin.resources.table."""
