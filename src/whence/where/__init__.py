"""Tables of where in the network the uncertainty comes from."""
