"""Uses of posteriors beyond prediction and profile: pruning, tracking during training, robustness to attacks."""
