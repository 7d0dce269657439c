"""Execution services, independent of networks and curvature: files, checkpoints, memory, ranks, passes, randomness."""
