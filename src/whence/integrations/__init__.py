"""Other libraries: each module needs the extra of its name, and is imported by its users alone."""
