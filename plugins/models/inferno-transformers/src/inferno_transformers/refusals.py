"""Phrases that several refusals share."""

CANNOT = "cannot run on transformers' own module here"
OWN_ATTENTION = "its attention is its own, not one of transformers' exchangeable functions"
REMEDY = "It needs its own inferno plugin."
