"""Speed and memory of whence beside its peers, each contender in its own process; run by ``python -m benchmarks``."""
