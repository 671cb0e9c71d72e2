"""Requests: their parameters, and the values that the kernel passes on for them."""
