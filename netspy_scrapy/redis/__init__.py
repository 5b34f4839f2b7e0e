"""Redis: connection, keys, stores shared by processes."""
