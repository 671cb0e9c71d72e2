"""Phrases that several refusals share."""

CANNOT = "cannot run on transformers' own module here"
OWN_ATTENTION = "its attention is its own, not one of transformers' exchangeable functions"
OWN_STATE = "it keeps a state per sequence that is not a KV cache"
REMEDY = "It needs its own inferno plugin."

HEAD_BIAS = ".decoder.bias"
"""BERT's heads have a bias under their path, and the same one in their `decoder`, which computes
with it."""
