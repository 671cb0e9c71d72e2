"""What an evaluation found, as values that can be written as JSON."""

from __future__ import annotations

import json

import attrs
from attrs import frozen

from inferno_eval.measures import Divergence, Perplexity


@frozen(kw_only=True)
class GroupReport:
    """The reference with one group of modules taken from the model: what this group alone costs."""

    name: str
    patterns: tuple[str, ...]
    """Of the modules, as for `--override`."""
    saved: int = 0
    """Bytes by which the group's weights are smaller in the model than in the reference."""
    divergence: Divergence | None = None
    """From the reference; None if the group cannot be swapped."""
    perplexity: Perplexity | None = None
    note: str = ""
    """Why it cannot."""


@frozen(kw_only=True)
class Report:
    """The quality of one model."""

    model: str
    reference: str | None
    """The other model, if there is one."""
    text: str
    """Where the text comes from."""
    window: int
    stride: int | None
    num_windows: int
    num_tokens: int
    """Tokens that were scored."""
    weights: int
    """Bytes of the model's weights in memory, as planned."""
    perplexity: Perplexity
    reference_perplexity: Perplexity | None = None
    divergence: Divergence | None = None
    outside: float | None = None
    """Mean probability that the reference gives to tokens whose divergence is counted as that of
    one token: all but its most likely ones."""
    groups: tuple[GroupReport, ...] = ()
    notes: tuple[str, ...] = ()


def report_to_json(report: Report) -> str:
    """Return the report as an indented JSON document."""
    return json.dumps(attrs.asdict(report), indent=2, ensure_ascii=False)
