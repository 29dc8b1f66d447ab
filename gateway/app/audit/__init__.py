"""The audit log in a process: its writers' closed segments, the other sinks, the texts that it keeps under keys, and who may read them."""
