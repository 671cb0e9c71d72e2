"""The answers of /v1/responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field

from inferno.errors import InfernoError, ShuttingDownError, StoreError
from inferno.server.chat.conversation import Conversation, ParsedChoice
from inferno.server.generate.shape import Shape, encode
from inferno.server.hosting.served_model import ServedModel
from inferno.server.http.errors import body as error_body
from inferno.server.http.errors import log
from inferno.server.openai import logprobs
from inferno.server.responses.database import Database
from inferno.server.responses.items import Item
from inferno.server.responses.output import Event, Output
from inferno.server.responses.running import Running
from inferno.server.responses.schema import ResponsesRequest
from inferno.server.responses.store import Store
from inferno.server.responses.stored import Stored
from inferno.server.responses.translation import (
    SEALED_REASONING,
    checked_metadata,
    wants_logprobs,
)

if TYPE_CHECKING:
    from inferno.llm import TextDelta
    from inferno.server.generate.generation import Generation


@define(kw_only=True)
class Context:
    """The stored conversation and the previous response of a response."""

    owner: str
    """Digest of its API key."""
    store: Store
    running: Running
    items: Sequence[Item]
    """The body's own."""
    conversation: str | None = None

    async def save(self, stored: Stored) -> None:
        await self.store.run(Database.save, self.owner, stored)

    async def accept(self, stored: Stored) -> None:
        await self.store.run(Database.accept, self.owner, stored)

    async def fail(self, id: str, error: dict[str, Any]) -> None:
        await self.store.run(Database.fail, self.owner, id, error)


@define
class _Choice(ParsedChoice):
    output: Output = field(kw_only=True)
    model: ServedModel = field(kw_only=True)
    streamed: bool = field(kw_only=True)
    events: list[Event] = field(factory=list)
    """What is not written yet."""
    texts: list[str] = field(factory=list)
    all_token_ids: list[int] = field(factory=list)

    def take(self, delta: TextDelta) -> None:
        if self.finish is not None:  # cancelled
            return
        super().take(delta)
        self.texts.append(delta.text)
        self.all_token_ids += delta.token_ids
        self.token_ids = []
        for new in self.drain():
            self._tell(self.output.add(new, self._scored() if new.kind == "content" else None))
            self.logprobs = []  # a token belongs to the first text that arrives with it

    def end(self, status: str) -> None:
        """Close what is open."""
        self._tell(self.output.close(status))

    def cancel(self) -> None:
        """End the output as it is."""
        self.finish = "cancelled"
        for new in self.parser.finish() if self.parser is not None else ():
            self._tell(self.output.add(new))

    def _tell(self, events: list[Event]) -> None:
        if self.streamed:
            self.events += events

    def _scored(self) -> list[dict[str, Any]]:
        if not self.output.with_logprobs:
            return []
        return logprobs.chat(self.model.tokenizer, self.logprobs)


class ResponsesShape(Shape[_Choice]):
    """One response: an object, or events."""

    def __init__(
        self,
        model: ServedModel,
        body: ResponsesRequest,
        conversation: Conversation,
        context: Context,
    ) -> None:
        self.body, self.model, self.context = body, model, context
        reasoning = body.reasoning or {}
        output = Output(
            summarized=bool(reasoning.get("summary") or reasoning.get("generate_summary")),
            sealed=SEALED_REASONING in (body.include or ()),
            with_logprobs=wants_logprobs(body),
        )
        parser = conversation.parsers[0]
        streamed = bool(body.stream)
        self.choices = [_Choice(0, output=output, model=model, streamed=streamed, parser=parser)]
        self.stores = body.store is not False and context.store.enabled
        self.metadata = checked_metadata(body.metadata)
        self.begun = asyncio.Event()
        """Set once it is admitted."""
        self._is_accepted = False
        self._failure: dict[str, Any] | None = None
        self._sequence = 0
        self._ended: float | None = None

    @property
    def id(self) -> str:
        return f"resp_{self.generation.id}"

    @property
    def is_background(self) -> bool:
        return bool(self.body.background)

    @property
    def owner(self) -> str:
        return self.context.owner

    def open(self, generation: Generation) -> None:
        super().open(generation)
        self.context.running.add(self)
        self.begun.set()

    def begin(self) -> Iterable[bytes]:
        snapshot = self.snapshot()
        return [
            self._encode((f"response.{kind}", {"response": snapshot}))
            for kind in ("created", "in_progress")
        ]

    def update(self, choice: _Choice) -> Iterable[bytes]:
        return [self._encode(event) for event in self._drain()]

    async def completed(self) -> None:
        self._close()
        await self._save()

    async def failed(self, error: BaseException) -> None:
        """Store it as failed, for it has no client that could be told."""
        if isinstance(error, asyncio.CancelledError):
            error = ShuttingDownError("the server shut down before it was complete", "Try again.")
        self._fail(error)
        self.context.running.add(self)  # until it is stored
        try:
            await self._save()
        except InfernoError as fault:  # at least that it failed: it was accepted
            self._fail(fault)
            try:
                await self.context.fail(self.id, self._failure or {})
            except StoreError:
                return  # it is shown as failed until the server stops, and by the next one
        self.context.running.remove(self)

    async def accept(self) -> None:
        """Store that it was accepted, before its client is told. Raises StoreError, RequestError;
        then it is not generated."""
        stored, self._is_accepted = self._stored(), True
        try:
            await self.context.accept(stored)
        except InfernoError:
            self.discard()
            raise

    def discard(self) -> None:
        """Stop generating, and store nothing."""
        self.stores = False
        self.cancel()

    async def _save(self) -> None:
        if self.stores:
            await self.context.save(self._stored())

    def _stored(self) -> Stored:
        choice = self.choices[0]
        return Stored(
            body=self.snapshot(),
            inputs=self.context.items,
            previous=self.body.previous_response_id,
            conversation=self.context.conversation if self._failure is None else None,
            is_accepted=self._is_accepted,
            text="".join(choice.texts),
            token_ids=choice.all_token_ids,
        )

    def end(self) -> Iterable[bytes]:
        status = self.status
        kind = status if status in ("completed", "failed") else "incomplete"
        last = (f"response.{kind}", {"response": self.snapshot()})
        return [self._encode(event) for event in (*self._drain(), last)]

    def whole(self) -> dict[str, Any]:
        return self.snapshot()

    def error(self, error: BaseException) -> bytes:
        self._fail(error)
        events = (*self._drain(), ("response.failed", {"response": self.snapshot()}))
        return b"".join(map(self._encode, events))

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, InfernoError):
            log.error("%s failed", self.id, exc_info=error)
        self._close("incomplete")
        shown = error_body(error)[1]["error"]
        code = "rate_limit_exceeded" if shown["code"] == "rate_limit_exceeded" else "server_error"
        self._failure = {"code": code, "message": shown["message"]}

    def close(self) -> None:
        self.context.running.remove(self)

    def cancel(self) -> dict[str, Any]:
        """Stop generating, and return the response as it is."""
        choice = self.choices[0]
        if choice.finish is None:
            choice.cancel()
            self._close()
            self.generation.abort()
        return self.snapshot()

    def reasoning_tokens(self) -> int | None:
        return self.choices[0].reasoning_tokens(self.model.tokenizer)

    @property
    def status(self) -> str:
        if self._failure is not None:
            return "failed"
        finish = self.choices[0].finish
        if finish is None and self.body.background and not self.generation.completion_tokens:
            return "queued"
        known = {None: "in_progress", "length": "incomplete", "cancelled": "cancelled"}
        return known.get(finish, "completed")

    def snapshot(self) -> dict[str, Any]:
        """Return the response object as of now."""
        body, prepared, status = self.body, self.generation.prepared, self.status
        done, params = status not in ("queued", "in_progress"), prepared.params
        reasoning, text = body.reasoning or {}, body.text or {}
        conversation, ignored = self.context.conversation, prepared.ignored
        response = {
            "id": self.id,
            "object": "response",
            "created_at": self.generation.created,
            "completed_at": self._ended if status == "completed" else None,
            "status": status,
            "background": bool(body.background),
            "error": self._failure,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "model": prepared.model,
            "output": self.choices[0].output.snapshot(),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "conversation": None if conversation is None else {"id": conversation},
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {k: reasoning.get(k) for k in ("effort", "summary")},
            "safety_identifier": None,
            "service_tier": "default",
            "store": self.stores,
            "temperature": params.temperature,
            "text": {"format": {"type": "text"}} | text,
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": self._usage() if done else None,
            "user": None,
            "metadata": self.metadata,
        }
        if version := self.choices[0].weight_version:
            response["weight_version"] = version
        return response | ({"x_inferno": {"ignored": ignored}} if ignored else {})

    def _close(self, status: str | None = None) -> None:
        """Close the output, once."""
        if self._ended is None:
            self._ended = time.time()
            ending = status or ("completed" if self.status == "completed" else "incomplete")
            self.choices[0].end(ending)

    def _drain(self) -> list[Event]:
        choice = self.choices[0]
        events, choice.events = choice.events, []
        return events

    def _encode(self, event: Event) -> bytes:
        kind, values = event
        number, self._sequence = self._sequence, self._sequence + 1
        content = {"type": kind, "sequence_number": number, **values}
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(content))

    def _usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = self.usage()
        reasoning = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": usage["total_tokens"],
        }
