"""Model + data + likelihood → curvature, by block."""
