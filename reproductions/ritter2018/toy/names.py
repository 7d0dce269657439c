"""Names of methods, and of the ways to use them."""

KRONECKER, DIAGONAL, FULL = "Kronecker Laplace", "diagonal Laplace", "full Laplace"
EXACT, DIAGONAL_FISHER, FULL_FISHER = "Kronecker, exact damping", "diagonal, sampled Fisher", "full, sampled Fisher"
PAPER = (KRONECKER, DIAGONAL, FULL)
METHODS = (*PAPER, EXACT, DIAGONAL_FISHER, FULL_FISHER)
DETERMINISTIC, HMC = "deterministic", "HMC"
TUNINGS = ("untuned", "tuned")
WAYS = ("sampled", "linearised")
