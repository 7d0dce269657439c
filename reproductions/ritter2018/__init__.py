"""Ritter, Botev and Barber (2018), "A scalable Laplace approximation for neural networks", with real data."""
