"""Papers, done again with whence."""
