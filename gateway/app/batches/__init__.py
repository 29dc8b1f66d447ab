"""Batches of clients: made and shown, taken under leases, run line by line through the pipeline, and their files of results."""
