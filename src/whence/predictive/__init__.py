"""From a posterior to predictions."""
