"""Reads messages with recipients: to itself is reasoning, to a tool is a call."""

from __future__ import annotations

import re

from attrs import evolve

from inferno_chat_formats.calls import read_call
from inferno_chat_formats.channels import MESSAGE, START, Channels
from inferno_chat_formats.parser import Parser
from inferno_chat_formats.reader import Broken, Markers, Text, Wait
from inferno_chat_formats.spec import Calls, Slot
from inferno_chat_formats.values import Tools

ENDS = ("<|eom|>", "<|eot|>")

_RECIPIENT = re.compile(r"to=([^\s<]+)")


class Recipients(Channels):
    """`to=self<|message|>...<|eom|><|start|>assistant to=NAME<|message|>...<|eot|>`, where the text
    to a tool is a call in markers."""

    headers = Markers([START, MESSAGE])
    header = re.compile(r"(<\|start\|>(assistant)?)?\s*(to=[^\s<]+)?\s*")
    ends, body_ends = ENDS, Markers([*ENDS, START])

    def __init__(self, tools: Tools, calls: Calls) -> None:
        """`calls` begins with the recipient and the marker of the message."""
        super().__init__(tools)
        opening, *call, closing = (part for part in calls.call if part is not Slot.RECIPIENT)
        opening, closing = str(opening).removeprefix(MESSAGE), str(closing)
        self.calls = evolve(calls, opening=opening, call=tuple(call), closing=closing)

    def _body(self, parser: Parser, header: str, start: int) -> Wait[None]:
        match = _RECIPIENT.search(header)
        name = match[1] if match else "user"
        if name not in ("self", "user") and self.tools:
            yield from self._call(parser, name, start)
            return
        if name not in ("self", "user"):  # no tools: a call is content
            parser.content(parser.text.buffer[start : parser.text.pos])
        yield from self._stream(parser, reasoning=name == "self")

    def _call(self, parser: Parser, name: str, start: int) -> Wait[None]:
        text, body = parser.text, parser.text.pos
        try:
            yield from text.expect(self.calls.opening)
            new_calls = yield from read_call(text, self.calls, self.tools)
            if not (yield from text.accept(self.calls.closing)) and not _is_cut(text, self.calls):
                raise Broken
            if (yield from self._message(text)).strip():
                raise Broken
        except Broken:
            text.pos = body
            yield from self._message(text)
            parser.content(text.buffer[start : text.pos])
            return
        parser.calls(new_calls)


def _is_cut(text: Text, calls: Calls) -> bool:
    """Whether the output ends in or before the marker after a call, which is complete then."""
    if not (text.ended and calls.closing.strip().startswith(text.rest.strip())):
        return False
    text.pos = len(text.buffer)
    return True
