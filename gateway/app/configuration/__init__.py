"""From settings to a Snapshot, and changes of it while traffic flows."""
