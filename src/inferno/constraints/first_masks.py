"""Follows a grammar for a few tokens before its request is admitted: many that compile exceed a
limit as soon as text is followed.

Suffixes: W words of 32 tokens.
"""

from __future__ import annotations

from time import thread_time

import numpy as np

from inferno.constraints.grammar_time import TOKEN_SECONDS
from inferno.contracts import GrammarCompiler, MaskRequest, Matcher, Vocabulary
from inferno.errors import GrammarError

_MOST_TOKENS = 32
_SECONDS = 0.1
"""Processor time beyond which no further token is tried."""


def follow_first(compiler: GrammarCompiler, matcher: Matcher, vocabulary: Vocabulary) -> None:
    """Accept the longest token that may follow, some times. Raises GrammarError if the grammar
    gives up, or takes longer for a token than a request may."""
    lengths = np.array([len(token) for token in vocabulary.tokens])
    lengths[list(vocabulary.special)] = 0
    mask_W = np.zeros((1, -(-len(lengths) // 32)), np.int32)
    began = before = thread_time()
    for _ in range(_MOST_TOKENS):
        mask_W[:] = 0
        compiler.fill([MaskRequest(matcher, (), 0)], mask_W)
        allowed = np.unpackbits(mask_W.view(np.uint8)[0], bitorder="little")[: len(lengths)]
        longest = int((lengths * allowed).argmax())
        ended = bool(matcher.error) or not lengths[longest] or not allowed[longest]
        if not ended:
            ended = not matcher.accept(longest) or matcher.is_done
        if matcher.error:
            raise GrammarError(f"the grammar cannot be followed: {matcher.error}", "Simplify it.")
        now = thread_time()
        if (seconds := now - before) > TOKEN_SECONDS:
            raise GrammarError(f"the grammar takes {seconds:.2g} s for a token", "Simplify it.")
        if ended or now - began > _SECONDS:
            return
        before = now
