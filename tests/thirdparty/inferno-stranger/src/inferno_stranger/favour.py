"""A favourite token. Suffixes: V vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.contracts import FieldEffect, ProcessorContext

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class Favour:
    token_id: int
    bias: float

    def process(self, token_ids: Sequence[int], logits_V: Tensor) -> Tensor:
        logits_V[self.token_id] += self.bias
        return logits_V


def check(args: Mapping[str, Any]) -> None:
    if not isinstance(args.get("token_id"), int):
        raise ValueError("token_id must be a number")


def build(args: Mapping[str, Any], context: ProcessorContext) -> Favour:
    return Favour(args["token_id"], float(args.get("bias", 10)))


def apply(token_id: int) -> FieldEffect:
    call = {"name": "favour", "args": {"token_id": token_id, "bias": 1e9}}
    return FieldEffect(logits_processors=[call])
