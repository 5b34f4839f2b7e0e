"""The development cache: answers of earlier runs, read from disk in place of a request."""
