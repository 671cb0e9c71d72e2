"""Builds the items of a response from what the model writes, with the events of a stream."""

from __future__ import annotations

from typing import Any, TypeAlias

from attrs import define, field

from inferno.contracts import Delta
from inferno.server.responses.items import Item, new_id, seal

Event: TypeAlias = tuple[str, dict[str, Any]]
"""An event's type, and its fields without the sequence number."""


@define
class Output:
    """The items of one response. At most one is open; the next of another kind closes it."""

    summarized: bool = False
    """Whether reasoning is its own summary too: clients that ask for one show nothing else."""
    sealed: bool = False
    """Whether reasoning has `encrypted_content`, for clients that send nothing else back."""
    with_logprobs: bool = False
    items: list[Item] = field(factory=list)
    _texts: list[str] = field(factory=list)
    """Of the open item."""
    _logprobs: list[dict[str, Any]] = field(factory=list)
    _open: Item | None = None

    def add(self, delta: Delta, logprobs: list[dict[str, Any]] | None = None) -> list[Event]:
        """Add what the model wrote. `logprobs` are those of its tokens."""
        if delta.kind == "tool":
            return [*self.close(), *self._call(delta)]
        kind = "reasoning" if delta.kind == "reasoning" else "message"
        events = []
        if self._open is None or self._open["type"] != kind:
            events = [*self.close(), *self._begin(kind)]
        self._texts.append(delta.text)
        if kind == "message":
            self._logprobs += logprobs or ()
            scored = {"logprobs": logprobs or []}
            return [*events, self._event("output_text.delta", delta=delta.text, **scored)]
        events.append(self._event("reasoning_text.delta", delta=delta.text))
        if self.summarized:
            events.append(self._summary("text.delta", delta=delta.text))
        return events

    def close(self, status: str = "completed") -> list[Event]:
        """Close the open item, if there is one."""
        item, text = self._open, "".join(self._texts)
        if item is None:
            return []
        if item["type"] == "message":
            part = self._text_part(text)
            done = [self._event("output_text.done", text=text, logprobs=self._logprobs)]
        else:
            part = {"type": "reasoning_text", "text": text}
            done = [self._event("reasoning_text.done", text=text)]
        item["content"] = [part]
        done.append(self._event("content_part.done", part=part))
        if item["type"] == "reasoning":
            if self.summarized:
                summary = {"type": "summary_text", "text": text}
                item["summary"] = [summary]
                done.append(self._summary("text.done", text=text))
                done.append(self._summary("part.done", part=summary))
            if self.sealed:
                item["encrypted_content"] = seal(text)
        item["status"] = status
        self._open, self._texts, self._logprobs = None, [], []
        return [*done, self._item_event("done", item)]

    def snapshot(self) -> list[Item]:
        """Return the items so far, as they would be stored."""
        if self._open is None:
            return list(self.items)
        text = "".join(self._texts)
        kind = "reasoning_text" if self._open["type"] == "reasoning" else "output_text"
        part = self._text_part(text) if kind == "output_text" else {"type": kind, "text": text}
        return [*self.items[:-1], {**self._open, "content": [part]}]

    def _begin(self, kind: str) -> list[Event]:
        if kind == "message":
            item: Item = {"type": "message", "id": new_id("msg"), "role": "assistant"}
            part = self._text_part("")
        else:
            item = {"type": "reasoning", "id": new_id("rs"), "summary": []}
            part = {"type": "reasoning_text", "text": ""}
        item |= {"status": "in_progress", "content": []}
        self._open = item
        self.items.append(item)
        events = [self._item_event("added", item)]
        if kind == "reasoning" and self.summarized:
            empty = {"type": "summary_text", "text": ""}
            events.append(self._summary("part.added", part=empty))
        return [*events, self._event("content_part.added", part=part)]

    def _call(self, delta: Delta) -> list[Event]:
        """A call is never split, so one delta has all arguments."""
        head = {"type": "function_call", "id": new_id("fc"), "call_id": delta.id}
        head |= {"name": delta.name, "arguments": "", "status": "in_progress"}
        item = head | {"arguments": delta.text, "status": "completed"}
        self.items.append(item)
        where = {"item_id": item["id"], "output_index": len(self.items) - 1}
        arguments = "response.function_call_arguments"
        return [
            self._item_event("added", head),
            (f"{arguments}.delta", {**where, "delta": delta.text}),
            (f"{arguments}.done", {**where, "name": delta.name, "arguments": delta.text}),
            self._item_event("done", item),
        ]

    def _text_part(self, text: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": []}
        return part | ({"logprobs": list(self._logprobs)} if self.with_logprobs else {})

    def _where(self) -> dict[str, Any]:
        assert self._open is not None, "an item is open"
        return {"item_id": self._open["id"], "output_index": len(self.items) - 1}

    def _event(self, kind: str, **values: Any) -> Event:
        return f"response.{kind}", {**self._where(), "content_index": 0, **values}

    def _summary(self, kind: str, **values: Any) -> Event:
        name = f"response.reasoning_summary_{kind}"
        return name, {**self._where(), "summary_index": 0, **values}

    def _item_event(self, kind: str, item: Item) -> Event:
        where = {"output_index": len(self.items) - 1}
        # A copy: the event may be written after the item has changed.
        return f"response.output_item.{kind}", {**where, "item": dict(item)}
