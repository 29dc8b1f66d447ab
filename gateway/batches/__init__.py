"""Files of clients and the lines of batches: how they are kept, read, checked and written. Knows no store, no pipeline and no HTTP."""
