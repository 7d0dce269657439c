"""Random networks, calls, files and records. ``make fuzz`` runs them for an hour, the suite for a minute."""
