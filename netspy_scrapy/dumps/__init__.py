"""What could not be stored or fetched, kept in files until a replay."""
