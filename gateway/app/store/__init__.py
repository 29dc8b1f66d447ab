"""A process's link to the store, what it keeps of it in memory, and the store's move to another database."""
