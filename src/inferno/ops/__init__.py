"""Operators in torch: the reference that kernels must agree with, and what runs without them."""
