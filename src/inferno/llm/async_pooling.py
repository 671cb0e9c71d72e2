"""Embeddings and scores of a served model. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from inferno.llm.outputs import TextDelta
from inferno.llm.pairs import paired, scoring_of
from inferno.llm.preprocessor import Preprocessor
from inferno.llm.prompts import Prompt, with_seconds
from inferno.request.requests import Pooling, Reduction
from inferno.request.sampling_params import SamplingParams

_ONE = SamplingParams(max_tokens=1)


class AsyncPooling(ABC):
    """A part of `AsyncLLM`: what takes one step for each prompt, and generates nothing."""

    @property
    @abstractmethod
    def _preprocessor(self) -> Preprocessor: ...

    @abstractmethod
    def stream_all(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        pooling: Reduction | None = None,
    ) -> AsyncGenerator[list[TextDelta], None]:
        """Stream the results of all prompts."""

    async def embed(
        self,
        prompts: Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
    ) -> list[list[float]]:
        """Return an embedding of each prompt, like `LLM.embed`."""
        recipe = self._preprocessor.pooling.recipe(
            pooling=pooling, normalize=normalize, dimensions=dimensions, prompt_name=prompt_name
        )
        stream = self.stream_all(recipe.prompted(prompts), _ONE, pooling=recipe.pooling)
        return recipe.finish(await _gathered(stream, lambda d: d.embedding or (), len(prompts)))

    async def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        instruction: str | None = None,
    ) -> list[float]:
        """Return the score of each pair of strings, like `LLM.score`. Cancelling the call aborts
        the request. Raises RequestError."""
        pairs = paired(text_1, text_2)
        scoring = scoring_of(self._preprocessor, pairs, instruction=instruction)
        prompts = with_seconds(scoring.prompts, scoring.seconds)
        stream = self.stream_all(prompts, scoring.params, pooling=scoring.pooling)
        return scoring.scores(await _gathered(stream, scoring.numbers, len(prompts)))


async def _gathered(
    stream: AsyncGenerator[list[TextDelta], None],
    numbers: Callable[[TextDelta], Sequence[float]],
    count: int,
) -> list[Sequence[float]]:
    """Return what was computed of each of `count` prompts."""
    vectors: dict[int, Sequence[float]] = {}
    async with aclosing(stream) as deltas:
        async for some in deltas:
            vectors |= {delta.index: each for delta in some if (each := numbers(delta))}
    return [vectors[i] for i in range(count)]
