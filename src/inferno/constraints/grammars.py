"""Compiles the grammars of requests, with the providers that the plan chose."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import define, evolve, field

from inferno.catalog import load_catalog
from inferno.constraints.budget import BudgetConstraint
from inferno.constraints.constraint import (
    Constraint,
    GrammarConstraint,
    ReasoningConstraint,
    ReasoningTokens,
)
from inferno.constraints.first_masks import follow_first
from inferno.constraints.grammar_time import TimedMatcher
from inferno.contracts import (
    GrammarCompiler,
    GrammarProvider,
    GrammarSpec,
    Matcher,
    ReasoningMarkers,
    Vocabulary,
)
from inferno.errors import GrammarError, InfernoError
from inferno.plan import Opened, Plan, read_text
from inferno.request.sampling_params import SamplingParams
from inferno.text import Tokenizer


def hint_for(plan: Plan, kind: str) -> str:
    """Return a sentence on how to install what compiles this kind of grammar, or an empty
    string."""
    return load_catalog(disable=plan.disable, only=plan.only).hint("grammar", kind)


def uncompiled(kind: str, hint: str) -> GrammarError:
    """Return the error for a kind that nothing compiles."""
    return GrammarError(
        f"nothing installed compiles grammars of kind {kind}",
        hint or "Install a plugin that does: `inferno plugins` lists those that are installed.",
    )


_MOST_MARKERS = 8
"""Markers whose tokens are kept. A server has one or two."""


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """Return what compilers know of a tokenizer, for a model with that many tokens. Takes a second
    for a large vocabulary."""
    ids = range(vocab_size)
    return Vocabulary(
        tokens=[tokenizer.token_bytes(i) for i in ids],
        special=frozenset(i for i in ids if tokenizer.is_special(i)),
        end=tuple(i for i in tokenizer.eos_token_ids if i in ids),
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
    )


@define(eq=False)
class Grammars:
    """The compilers of one model, built when they are first used. Safe to call in any thread."""

    providers: Mapping[str, GrammarProvider]
    """By kind of grammar."""
    read: Callable[[], Vocabulary | None]
    """read() -> the model's `Vocabulary`, or None if it has no tokenizer."""
    hint: Callable[[str], str] = lambda kind: ""
    """hint(kind) -> how to install what compiles it, as a sentence, or an empty string."""
    _vocabulary: Vocabulary | None = None
    _compilers: dict[str, GrammarCompiler] = field(factory=dict)
    _marks: OrderedDict[ReasoningMarkers, ReasoningTokens] = field(factory=OrderedDict)
    _lock: Any = field(factory=threading.Lock)

    @classmethod
    def of(cls, opened: Opened) -> Grammars:
        """Return the compilers that a plan chose. The first grammar reads the tokenizer, from the
        checkpoint opened anew: `opened` may be closed by then."""
        plan, parts, assets = opened.plan, opened.parts, opened.assets
        stop_tokens = parts.architecture.stop_tokens

        def read() -> Vocabulary | None:
            try:
                text = assets or read_text(plan, parts)
            except (InfernoError, OSError) as error:
                raise GrammarError(f"the tokenizer cannot be read: {error}") from error
            tokenizer = Tokenizer.from_assets(text, plan.config, stop_tokens=stop_tokens)
            return vocabulary_of(tokenizer, plan.vocab_size) if tokenizer is not None else None

        return cls(opened.parts.grammars, read, partial(hint_for, plan))

    def constraint_of(self, params: SamplingParams, tenant: str = "") -> Constraint | None:
        """Return the constraint of a request's grammar and its budget of reasoning, or None if it
        has neither. Its time is the tenant's. Raises GrammarError."""
        spec, markers = params.structured_outputs, params.reasoning
        inner = self.compile(spec) if spec is not None else None
        if inner is not None and inner.time is not None:
            inner.time.tenant = tenant
        if params.thinking_token_budget is None or markers is None:
            return inner
        marks = self._marks_of(markers)
        close = tuple(self._known().encode(markers.close))
        budget = params.thinking_token_budget
        ends = tuple(marker.encode() for marker in markers.calls if markers.calls_end)
        return BudgetConstraint(inner, marks, close, budget, markers.is_open, ends)

    def compile(self, spec: GrammarSpec) -> Constraint:
        """Return the constraint of a spec. Raises GrammarError."""
        compiler = self._compiler(spec.kind)
        matcher = TimedMatcher(self._matcher(compiler, spec))
        if spec.reasoning is None:
            return GrammarConstraint(matcher, compiler, self._known().end)
        marks = self._marks_of(spec.reasoning)
        return ReasoningConstraint(matcher, compiler, spec.reasoning, marks)

    def check(self, spec: GrammarSpec) -> None:
        """Raise GrammarError if a grammar does not compile, or cannot be followed for a few
        tokens. Its masks may take long."""
        compiler = self._compiler(spec.kind)
        follow_first(compiler, self._matcher(compiler, spec), self._known())

    def prepare(self) -> None:
        """Build all compilers now."""
        for kind in self.providers:
            self._compiler(kind)

    def _matcher(self, compiler: GrammarCompiler, spec: GrammarSpec) -> Matcher:
        try:
            return compiler.compile(spec)
        except GrammarError:
            raise
        except BaseException as error:  # a provider's native code may raise anything
            raise GrammarError(
                f"the grammar cannot be compiled: {type(error).__name__}: {error}"
            ) from error

    def _compiler(self, kind: str) -> GrammarCompiler:
        if (provider := self.providers.get(kind)) is None:
            raise uncompiled(kind, self.hint(kind))
        with self._lock:
            if provider.name not in self._compilers:
                self._compilers[provider.name] = provider.build(self._known())
            return self._compilers[provider.name]

    def _known(self) -> Vocabulary:
        if self._vocabulary is None:
            self._vocabulary = self.read()
        if self._vocabulary is None:
            raise GrammarError(
                "this model has no tokenizer", "Add its tokenizer.json to the checkpoint."
            )
        return self._vocabulary

    def _marks_of(self, markers: ReasoningMarkers) -> ReasoningTokens:
        key = evolve(markers, is_open=False)
        with self._lock:
            if key not in self._marks:
                if len(self._marks) >= _MOST_MARKERS:
                    self._marks.popitem(last=False)
                self._marks[key] = ReasoningTokens.of(self._known(), key)
            return self._marks[key]
