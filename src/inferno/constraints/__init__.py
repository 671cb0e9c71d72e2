"""Constrained output in the engine process: grammars are compiled, followed token by token, and
turned into masks for the sampler. Imports no torch."""

from __future__ import annotations

from inferno.constraints.constraint import Constraint, Mask, allow_all
from inferno.constraints.constraints import Constraints
from inferno.constraints.following import follow
from inferno.constraints.grammars import Grammars, hint_for, uncompiled, vocabulary_of
from inferno.constraints.masks import NO_MASKS, Drafts, MaskJob, Masks

__all__ = [
    "NO_MASKS",
    "Constraint",
    "Constraints",
    "Drafts",
    "Grammars",
    "Mask",
    "MaskJob",
    "Masks",
    "allow_all",
    "follow",
    "hint_for",
    "uncompiled",
    "vocabulary_of",
]
