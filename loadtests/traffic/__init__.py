"""The users of a Locust run, one kind a file; loadtests/locustfile.py puts them together."""
