"""Posteriors over weights."""
