"""Model files: what lies in the registry directories, and how new ones get there."""
