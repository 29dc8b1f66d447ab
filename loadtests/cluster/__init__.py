"""What faults, changes and departures cost a cluster under constant load (tests/cluster). Each module is a script that prints a table."""
