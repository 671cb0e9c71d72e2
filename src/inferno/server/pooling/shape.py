"""Answers that are not streamed: vectors, and scores of pairs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from attrs import define

from inferno.errors import RequestError
from inferno.llm import TextDelta
from inferno.server.generate.checks import checked_salt
from inferno.server.generate.generation import Prepared
from inferno.server.generate.shape import Choice, Shape
from inferno.server.hosting.served_model import ServedModel
from inferno.server.http.parsing import Parsed
from inferno.server.pooling.schema import PoolingRequest

C = TypeVar("C", bound=Choice)


def prepared(
    parsed: Parsed[PoolingRequest],
    model: ServedModel,
    prompts: Sequence[tuple[int, ...]],
    **more: Any,
) -> Prepared:
    """Prepare prompts for the engine. `more` are fields of `Prepared`. Raises RequestError."""
    body = parsed.body
    return Prepared(
        model=model.name(body.model),
        prompts=prompts,
        priority=body.priority or 0,
        cache_salt=checked_salt(body.cache_salt),
        ignored=parsed.ignored,
        **more,
    )


@contextmanager
def blaming(param: str) -> Iterator[None]:
    """Name this field in errors about the prompts made of it."""
    try:
        yield
    except RequestError as error:
        if error.param == "prompt":
            error.param = param
        raise


@define
class Pooled(Choice):
    """One prompt's embedding."""

    vector: tuple[float, ...] = ()

    def take(self, delta: TextDelta) -> None:
        super().take(delta)
        self.vector = delta.embedding or self.vector


class WholeShape(Shape[C], Generic[C]):
    """An answer that is never streamed."""

    def update(self, choice: C) -> Iterable[bytes]:
        return ()

    def end(self) -> Iterable[bytes]:
        return ()

    def whole(self) -> dict[str, Any]:
        ignored = self.generation.prepared.ignored
        notes = {**self.notes(), **({"ignored": ignored} if ignored else {})}
        return {**self.body(), "x_inferno": notes}

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """Return the answer as its API defines it."""

    @abstractmethod
    def notes(self) -> dict[str, Any]:
        """Return how the answer was made, for `x_inferno`."""

    def usage(self) -> dict[str, object]:
        """The usage of the prompts: nothing is generated."""
        usage = self.generation.usage()
        return {**usage, "completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
