"""Evaluates a model on a text, alone or against another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, frozen

from inferno.errors import CheckpointError, OptionError
from inferno.plan import Options, open_model
from inferno.text import Tokenizer
from inferno_eval.groups import BY, Group, groups_of
from inferno_eval.passes import Pass, Passage, Progress
from inferno_eval.report import GroupReport, Report
from inferno_eval.windows import windows_of

if TYPE_CHECKING:
    from inferno_eval.spool import Spool


def evaluate(
    ref: str,
    *,
    text: str | Path,
    against: str | None = None,
    options: Options | None = None,
    window: int = 512,
    stride: int | None = None,
    limit: int | None = None,
    by: str = "layers",
    groups: int = 4,
    progress: Progress = lambda model, done, count: None,
) -> Report:
    """Return the perplexity of a model, and how far it is from the reference `against`.

    `text` is a UTF-8 file; a newline at its end is left out. It is cut into windows (`windows_of`),
    `limit` of them at most. With a reference, its groups of modules (`groups_of`, `by` and up to
    `groups` of them) are taken from the model, one group at a time. `options` are the engine's:
    in-situ quantization, overrides and the revision are the model's only, the others are the
    reference's too. One model is in memory at a time.

    Raises OptionError for a text that is too short, or a reference with another vocabulary;
    CheckpointError for a model without a tokenizer; and what loading does.
    """
    if by not in BY or groups < 1:
        raise OptionError(
            f"{groups} groups by {by!r}", f"Give at least 1 group by {' or '.join(BY)}."
        )
    length = window if stride is None else window + stride // 2
    model = _one_window(options or Options(), max(1, length))
    plain = evolve(model, isq=None, imatrix=None, overrides=(), revision=None)
    models = [(ref, model), *([(against, plain)] if against is not None else [])]
    token_ids, bos, vocab_size = _encoded(_read(Path(text)), models, length)
    windows = windows_of(token_ids, window=window, stride=stride, limit=limit, bos=bos)
    passage = Passage(tuple(windows), vocab_size, progress)
    report = partial(
        Report,
        model=ref,
        text=str(text),
        window=window,
        stride=stride,
        num_windows=len(windows),
        num_tokens=passage.num_tokens,
    )
    if against is None:
        alone = passage.through(ref, model)
        return report(reference=None, weights=alone.weights, perplexity=alone.perplexity)
    from inferno_eval.spool import Spool  # torch

    with Spool.create(passage.num_tokens, vocab_size) as spool:
        pair = _Pair(passage, ref, model, against, plain, spool)
        return pair.compared(report, by, groups)


@frozen(eq=False)
class _Pair:
    """A model and its reference."""

    passage: Passage
    ref: str
    model: Options
    against: str
    plain: Options
    """Of the reference."""
    spool: Spool

    def compared(self, report: Callable[..., Report], by: str, count: int) -> Report:
        """Run both, and then the reference with each group of modules from the model."""
        reference = self.passage.through(self.against, self.plain, write=self.spool.write)
        result = self.passage.through(self.ref, self.model, compare=self.spool.reader())
        parts, notes = groups_of(reference.modules, by, count), tuple[str, ...]()
        if parts and self.model.overrides:
            parts, notes = [], (_NOT_APART,)
        return report(
            reference=self.against,
            weights=result.weights,
            perplexity=result.perplexity,
            reference_perplexity=reference.perplexity,
            divergence=result.divergence(reference),
            outside=float(np.mean(self.spool.outside)),
            groups=tuple(self.measured(group, parts, reference) for group in parts),
            notes=notes,
        )

    def measured(self, group: Group, apart: Sequence[Group], reference: Pass) -> GroupReport:
        """Measure the reference with one group of modules from the model."""
        options = _with_group(group, apart, self.ref, self.model, self.plain)
        compare = self.spool.reader()
        try:
            result = self.passage.through(self.against, options, compare=compare, name=group.name)
        except (CheckpointError, OptionError) as error:
            return GroupReport(name=group.name, patterns=group.patterns, note=error.cause)
        return GroupReport(
            name=group.name,
            patterns=group.patterns,
            saved=reference.weights - result.weights,
            divergence=result.divergence(reference),
            perplexity=result.perplexity,
        )


_NOT_APART = "groups are not measured with --override: evaluate each override alone"


def _one_window(options: Options, length: int) -> Options:
    """Return the options of an engine that computes one window at a time and caches nothing."""
    return evolve(
        options,
        max_model_len=length,
        max_num_batched_tokens=length,
        max_num_seqs=1,
        cache_policy="none",
        speculative=None,
        num_speculative_tokens=None,
    )


def _with_group(
    group: Group, apart: Sequence[Group], ref: str, model: Options, plain: Options
) -> Options:
    """Return the options with which the reference takes one group of modules from the model,
    quantized as in the model."""
    options = evolve(
        plain,
        overrides=tuple(f"{pattern}={ref}" for pattern in group.patterns),
        packed_cache="none",  # loaded once: nothing to keep for another start
    )
    if model.isq is None:
        return options
    items = model.isq.split(",")
    rules = [f"{pattern}=none" for each in apart if each is not group for pattern in each.patterns]
    names = [item for item in items if "=" not in item]
    rules += [item for item in items if "=" in item]  # the first rule that matches counts
    return evolve(options, isq=",".join([*names, *rules]), imatrix=model.imatrix)


def _read(path: Path) -> str:
    """Read a text without a newline at its end, as llama.cpp does. Raises OptionError."""
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read {path}: {error}", "Give a text file in UTF-8.") from error


def _encoded(
    text: str, asked: Sequence[tuple[str, Options]], length: int
) -> tuple[list[int], int | None, int]:
    """Return the tokens of a text, the token that begins every text, if any, and the number of
    tokens that all models have. Raises CheckpointError if none has a tokenizer, OptionError if
    their vocabularies differ, or if windows of this length do not fit a model's context."""
    sizes, tokenizers = [], list[tuple[str, Tokenizer]]()
    for ref, options in asked:
        with open_model(ref, evolve(options, max_model_len=None)) as opened:
            if length > (longest := opened.config.max_position_embeddings):
                raise OptionError(
                    f"windows of {length} tokens do not fit {ref}, whose context is {longest}",
                    "Lower --window.",
                )
            sizes.append(opened.plan.vocab_size)
            tokenizer = Tokenizer.from_assets(opened.text(), opened.plan.config)
            if tokenizer is not None:
                tokenizers.append((ref, tokenizer))
    if not tokenizers:
        raise CheckpointError(
            f"{asked[0][0]} has no tokenizer, so that a text has no tokens",
            "Put tokenizer.json next to the weights.",
        )
    first, tokenizer = tokenizers[0]
    largest = max(each.vocab_size for _, each in tokenizers)
    same = all(tokenizer.same_vocabulary(other) for _, other in tokenizers[1:])
    if not same or (len(set(sizes)) > 1 and min(sizes) < largest):
        raise OptionError(
            f"{asked[0][0]} and {asked[-1][0]} have different vocabularies",
            "Compare models with the same tokenizer: their tokens must be the same.",
        )
    empty = tokenizer.encode("")
    bos = empty[0] if empty and tokenizer.is_special(empty[0]) else None
    return tokenizer.encode(text), bos, min(sizes)
