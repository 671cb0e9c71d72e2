"""Scores of pairs of strings, as `inferno.llm.pairs` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from inferno.llm import TextDelta
from inferno.llm.pairs import Pair, PairScoring, scoring_of
from inferno.server.generate.generation import Prepared
from inferno.server.generate.shape import Choice
from inferno.server.hosting.served_model import ServedModel, in_time
from inferno.server.http.parsing import Parsed
from inferno.server.pooling.shape import WholeShape, prepared


async def prepare_pairs(
    parsed: Parsed[Any], model: ServedModel, pairs: Sequence[Pair], **options: Any
) -> tuple[Prepared, PairScoring]:
    """Prepare the scoring of pairs. `options` are those of `scoring_of`. Raises RequestError."""
    scoring = await in_time(
        lambda: scoring_of(model.preprocessor, pairs, **options),
        sum(len(text) for pair in pairs for text in pair),
        model.tokenizer,
    )
    ready = prepared(
        parsed,
        model,
        scoring.prompts,
        params=scoring.params,
        pooling=scoring.pooling,
        seconds=scoring.seconds,
    )
    return ready, scoring


@define
class Scored(Choice):
    """One prompt, and what the model computed for it."""

    scoring: PairScoring = field(kw_only=True)
    numbers: Sequence[float] = ()

    def take(self, delta: TextDelta) -> None:
        super().take(delta)
        self.numbers = self.scoring.numbers(delta) or self.numbers


class PairsShape(WholeShape[Scored]):
    """An answer made from the scores of pairs."""

    def __init__(self, scoring: PairScoring) -> None:
        self._scoring = scoring
        self.choices = [Scored(i, scoring=scoring) for i in range(len(scoring.prompts))]

    def scores(self) -> list[float]:
        """Return each pair's score."""
        return self._scoring.scores([choice.numbers for choice in self.choices])

    def notes(self) -> dict[str, Any]:
        return {"method": self._scoring.method}
