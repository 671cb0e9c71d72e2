"""The model behind one app's endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from inferno.errors import ModelNotFoundError, RequestError
from inferno.server.errors import log
from inferno.server.output_parser import OutputFormat

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM
    from inferno.llm.preprocessor import Preprocessor
    from inferno.text import Tokenizer

T = TypeVar("T")
_LONG = 20_000
"""Characters of prompt that are worth a thread: tokenizing them would hold up every stream."""


class ServedModel:
    """A model, the names that clients know it by, and how it writes its output. (No attrs class:
    Litestar would look inside.)"""

    def __init__(
        self, llm: AsyncLLM, served_names: Sequence[str], reasoning_fields: Sequence[str]
    ) -> None:
        self.llm = llm
        self.names = tuple(served_names) or (llm.model_id,)
        """The first is the one that answers bear where a request names none."""
        self.reasoning_fields = tuple(reasoning_fields)
        """The fields of a message that carry the model's reasoning."""
        self.output_format = OutputFormat()
        """The model's own once `warm_up` has read it; until then all output is content."""
        self.created = int(time.time())

    @property
    def preprocessor(self) -> Preprocessor:
        return self.llm.preprocessor

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.llm.preprocessor.tokenizer

    def name(self, wanted: str | None) -> str:
        """The name to answer with. Raises ModelNotFoundError."""
        if wanted is None:
            return self.names[0]
        if wanted not in self.names:
            raise ModelNotFoundError(
                f"the model {wanted[:200]!r} does not exist",
                f"Served here: {', '.join(self.names)}",
            )
        return wanted

    def needed_tokenizer(self, param: str | None = None) -> Tokenizer:
        """Raises RequestError for a model that has none."""
        if self.tokenizer is None:
            raise RequestError(
                "this model has no tokenizer", "Send token ids to /v1/completions.", param=param
            )
        return self.tokenizer

    def warm_up(self) -> None:
        """Do what would else hold up every stream at the first chat: imports, and compiling the
        chat template."""
        try:
            self.output_format = OutputFormat.of(
                self.preprocessor.response_template, self.tokenizer
            )
        except ValueError as error:
            log.warning(
                "no tools and no reasoning: the checkpoint's response_template cannot be used: %s",
                error,
            )
        # A template may refuse this conversation and take others.
        with contextlib.suppress(Exception):
            self.preprocessor.render_chat([{"role": "user", "content": "."}])


async def in_time(work: Callable[[], T], characters: int) -> T:
    """`work`'s result, from a thread if it has so much text to tokenize that streams would wait."""
    return await asyncio.to_thread(work) if characters > _LONG else work()
