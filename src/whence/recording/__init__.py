"""Recording of a forward pass: which calls used which parameters, and for which examples."""
