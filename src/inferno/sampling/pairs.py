"""Pairs of texts: the types of their tokens, for models that tell them apart (`nn.TokenTypes`).

Suffixes: T tokens of the step, S sequences of it, R rows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from attrs import define, field
from torch import nn

from inferno.nn import TokenTypes
from inferno.request.requests import Request

R = TypeVar("R")


class Admitted(Protocol):
    """A sequence that takes a row: `core.types.NewSequence`."""

    @property
    def row(self) -> int: ...
    @property
    def request(self) -> Request: ...


class Arrays(Protocol):
    """A step: `core.runner.StepArrays`."""

    positions: np.ndarray[Any, Any]
    query_starts: list[int]
    rows: np.ndarray[Any, Any]


@define(eq=False)
class Pairs:
    """Writes the types of each step's tokens. A part of steps (`core.runner.StepPart`)."""

    layers: Sequence[TokenTypes]
    num_rows: int
    num_tokens: int
    """The most of a step."""
    device: str
    seconds_R: np.ndarray[tuple[int], np.dtype[np.int64]] = field(init=False)
    """Where the second text of each row begins."""

    def __attrs_post_init__(self) -> None:
        self.seconds_R = np.zeros(self.num_rows, np.int64)
        for layer in self.layers:
            layer.values_T = torch.zeros(self.num_tokens, dtype=torch.int64, device=self.device)

    @classmethod
    def of(cls, model: nn.Module, rows: int, tokens: int, device: str) -> list[Pairs]:
        """Return the part of a model that reads types; none for others."""
        layers = [module for module in model.modules() if isinstance(module, TokenTypes)]
        return [cls(layers, rows, tokens, device)] if layers else []

    def admit(self, new: Admitted) -> None:
        self.seconds_R[new.row] = new.request.second or sys.maxsize

    def before(self, arrays: Arrays) -> None:
        seconds_T = np.repeat(self.seconds_R[arrays.rows], np.diff(arrays.query_starts))
        types_T = torch.from_numpy((arrays.positions >= seconds_T).astype(np.int64))
        for layer in self.layers:
            layer.values_T[: len(types_T)].copy_(types_T)

    def refuses_replay(self, arrays: object) -> bool:
        return False

    def replays(self, usual: R) -> R:
        return usual

    def after(self, step: object, arrays: object, hidden_TD: object, results: object) -> None:
        return None
