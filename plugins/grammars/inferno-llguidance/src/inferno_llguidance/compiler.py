"""Grammars of one vocabulary, as llguidance compiles and follows them.

Suffixes: M masks, W words of 32 tokens.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import llguidance
from attrs import define, field

from inferno.contracts import GrammarSpec, MaskRequest, Vocabulary
from inferno.errors import GrammarError
from inferno_llguidance.blame import blamed
from inferno_llguidance.matcher import LLGuidanceMatcher, brief
from inferno_llguidance.spacing import JsonMatcher, SpacingTable
from inferno_llguidance.translate import llguidance_grammar

LIMITS = llguidance.LLParserLimits(
    max_lexer_states=100_000,  # 100 to 200 MB in the worst case
    verbose_errors=False,  # they would quote the whole grammar and the parser's state
)
"""What one matcher may use. Each mask also has the library's limits, some 15 ms."""


SLICES = (r"[a-z ]{1,30}", r"[a-zA-Z0-9 ,.']{1,30}", *llguidance.LLTokenizer.json_slices())
"""Sets of tokens of which a mask that allows all takes all at once. The library's own serve strings
of JSON; without those of words, the mask of `[a-z ]{100}` takes twenty times longer."""


class _Tokens:
    """The vocabulary, with the attributes that llguidance reads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.end[0] if vocabulary.end else None
        self.bos_token_id = None
        self.tokens = vocabulary.tokens
        self.special_token_ids = sorted(vocabulary.special)
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        # A string: llguidance asks with bytes first, and goes on with strings after an error.
        if isinstance(text, bytes):
            raise TypeError("only strings are tokenized")
        return list(self._encode(text))


@define(eq=False, slots=False)
class Compiler:
    """See contracts.GrammarCompiler."""

    vocabulary: Vocabulary
    _tokenizer: Any = field(init=False)
    _threads: int = field(init=False)
    _executor: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        if not self.vocabulary.end:
            raise GrammarError(
                "the model has no end token, so no grammar can end its output",
                "Name one in the checkpoint's generation_config.json.",
            )
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(self.vocabulary)),
            eos_token=list(self.vocabulary.end),
            slices=list(SLICES),
        )
        # Beside the model's own threads, more would only disturb.
        self._threads = min(8, (os.cpu_count() or 2) // 2) or 1
        self._executor = llguidance.LLExecutor(num_threads=self._threads)

    def compile(self, spec: GrammarSpec) -> LLGuidanceMatcher:
        matcher = self._matcher(llguidance_grammar(spec))
        if matcher.is_error() and not (error := matcher.get_error()).startswith("NoExtension"):
            raise GrammarError(brief(error), path=blamed(spec, error, self.error_of))
        if matcher.is_error() or (matcher.is_stopped() and not matcher.is_accepting()):
            raise GrammarError("the grammar matches nothing", "Let it match some output.")
        if spec.kind in ("json_schema", "json_object") and spec.whitespace is None:
            return JsonMatcher(matcher, self._spacing)
        return LLGuidanceMatcher(matcher)

    @cached_property
    def _spacing(self) -> SpacingTable:
        return SpacingTable.of(self.vocabulary)

    def error_of(self, spec: GrammarSpec) -> str:
        """Return why a grammar does not compile, or an empty string."""
        try:
            error: str = self._matcher(llguidance_grammar(spec)).get_error()
        except GrammarError as refused:
            return str(refused)
        return error

    def _matcher(self, grammar: str) -> Any:
        """Return the matcher after its first mask, which finds further errors."""
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return matcher

    def fill(self, requests: Sequence[MaskRequest], masks_MW: Any) -> None:
        words = -(-self._tokenizer.vocab_size // 32)
        assert masks_MW.flags["C_CONTIGUOUS"] and masks_MW.shape[1] >= words, "a row per mask"
        memory = masks_MW.ctypes.data, masks_MW.strides[0], len(masks_MW)
        jobs: list[Any] = [(r.matcher.inner, r.index, list(r.drafts)) for r in requests]  # type: ignore[attr-defined]
        plain = [(inner, index) for inner, index, drafts in jobs if not drafts]
        if min(len(plain), self._threads) > 1:
            self._executor.unsafe_compute_mask_ptr(plain, *memory)
        else:  # to wake another thread takes as long as a mask
            for inner, index in plain:
                inner.unsafe_compute_mask_ptr(memory[0] + index * memory[1], 4 * words)
        if drafted := [each for each in jobs if each[2]]:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafted, *memory)
        for matcher, drafts, index in requests:
            if isinstance(matcher, JsonMatcher):
                matcher.restrict(drafts, masks_MW[index : index + 1 + len(drafts)])
