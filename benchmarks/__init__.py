"""Speed and memory of whence beside laplace-torch, each in its own process; run by ``python -m benchmarks``."""
