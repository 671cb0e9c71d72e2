"""Markers of reasoning that several families share."""

THINK = (("<think>\n", "\n</think>\n\n"),)
"""The markers of most models."""
COHERE = (("<|START_THINKING|>", "<|END_THINKING|>"),)
MISTRAL = (("[THINK]", "[/THINK]"),)
