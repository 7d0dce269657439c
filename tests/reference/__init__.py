"""Slow, obvious reference implementations: the definitions that the fast code is compared with.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""
