"""How things run, each service once: files, checkpoints. Nothing here knows of networks or curvature."""
