"""The curvature of a network's loss on data, by block."""
