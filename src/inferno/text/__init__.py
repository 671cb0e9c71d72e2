"""Converts between text and token ids: tokenizer, chat template, incremental detokenizer. Imports
no torch."""

from __future__ import annotations

from inferno.text.detokenize import TextStream
from inferno.text.template import ChatTemplate, read_template
from inferno.text.tokenizer import Encoded, Tokenizer, check_vocabulary, eos_token_ids
from inferno.text.written_tools import has_tool_turns, with_written_tools

__all__ = [
    "ChatTemplate",
    "Encoded",
    "TextStream",
    "Tokenizer",
    "check_vocabulary",
    "eos_token_ids",
    "has_tool_turns",
    "read_template",
    "with_written_tools",
]
