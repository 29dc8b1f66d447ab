"""Models that are pipelines: the steps of one request, each a request of its own."""
