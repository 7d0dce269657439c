"""Where in the network the uncertainty sits: tables."""
