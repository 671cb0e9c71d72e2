"""The model that one app serves."""

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
"""Characters of a prompt above which it is tokenized in a thread, to not delay every stream."""


class ServedModel:
    """A model, its names for clients, and its output format. (Not an attrs class: Litestar would
    inspect it.)"""

    def __init__(
        self, llm: AsyncLLM, served_names: Sequence[str], reasoning_fields: Sequence[str]
    ) -> None:
        self.llm = llm
        self.names = tuple(served_names) or (llm.model_id,)
        """Answers have the first one if the request names none."""
        self.reasoning_fields = tuple(reasoning_fields)
        """The fields of a message for the model's reasoning."""
        self.output_format = OutputFormat()
        """Read by `warm_up`; until then all output is content."""
        self.created = int(time.time())

    @property
    def preprocessor(self) -> Preprocessor:
        return self.llm.preprocessor

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.llm.preprocessor.tokenizer

    def name(self, wanted: str | None) -> str:
        """Return the name for the answer. Raises ModelNotFoundError."""
        if wanted is None:
            return self.names[0]
        if wanted not in self.names:
            raise ModelNotFoundError(
                f"the model {wanted[:200]!r} does not exist",
                f"Use one of: {', '.join(self.names)}",
            )
        return wanted

    def needed_tokenizer(self, param: str | None = None) -> Tokenizer:
        """Return the tokenizer. Raises RequestError if the model has none."""
        if self.tokenizer is None:
            raise RequestError(
                "this model has no tokenizer", "Send token ids to /v1/completions.", param=param
            )
        return self.tokenizer

    def warm_up(self) -> None:
        """Import and compile what would otherwise delay every stream at the first chat."""
        try:
            self.output_format = OutputFormat.of(
                self.preprocessor.response_template, self.tokenizer
            )
        except ValueError as error:
            log.warning(
                "tool calls and reasoning are not parsed: the response_template is invalid: %s",
                error,
            )
        # A template may refuse this conversation but accept others.
        with contextlib.suppress(Exception):
            self.preprocessor.render_chat([{"role": "user", "content": "."}])


async def in_time(work: Callable[[], T], characters: int) -> T:
    """Run `work`, in a thread if tokenizing that many characters would delay streams."""
    return await asyncio.to_thread(work) if characters > _LONG else work()
