"""Converts between text and token ids: tokenizer, chat template, incremental detokenizer. Imports
no torch."""

from __future__ import annotations

from inferno.text.detokenize import TextStream
from inferno.text.template import ChatTemplate, read_template
from inferno.text.tokenizer import Tokenizer, eos_token_ids

__all__ = ["ChatTemplate", "TextStream", "Tokenizer", "eos_token_ids", "read_template"]
