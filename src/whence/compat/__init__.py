"""Other libraries' interfaces on top of whence, for moving over step by step."""
