"""This process among the replicas that share its store: who it is, the roll, jobs that one does for all, hints."""
