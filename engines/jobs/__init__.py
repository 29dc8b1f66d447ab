"""What a job does with model files, each in a process of its own (`python -m engines.jobs`)."""
