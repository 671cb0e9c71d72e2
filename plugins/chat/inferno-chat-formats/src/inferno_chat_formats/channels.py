"""Reads messages with channels: analysis is reasoning, a recipient makes a tool call."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import ClassVar

from inferno_chat_formats.calls import Call, arguments_of
from inferno_chat_formats.parser import Parser
from inferno_chat_formats.reader import Broken, Markers, Text, Wait, dump_json, parse_json
from inferno_chat_formats.values import Tools

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MAX_HEADER = 512

_HEADERS = Markers([START, CHANNEL])
_BODY_ENDS = Markers([*ENDS, START])
_HEADER = re.compile(
    r"(<\|start\|>(assistant)?)?\s*(to=[^\s<]+)?\s*"
    r"(<\|channel\|>\s*(analysis|commentary|final))?\s*(to=[^\s<]+)?\s*"
    r"((<\|constrain\|>)?(json|code|text))?\s*"
)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


class Channels:
    """`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
    to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`."""

    headers: ClassVar[Markers] = _HEADERS
    """What a header begins with."""
    header: ClassVar[re.Pattern[str]] = _HEADER
    ends: ClassVar[tuple[str, ...]] = ENDS
    """What ends a message."""
    body_ends: ClassVar[Markers] = _BODY_ENDS
    """The same, and the beginning of the next."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    def __call__(self, parser: Parser) -> Generator[None, None, None]:
        text = parser.text
        # The prompt ends in <|start|>assistant: a recipient may come before the first marker.
        headed = yield from text.accept("to=")
        text.pos -= 3 if headed else 0
        while True:
            if not headed and not (yield from self._between(parser)):
                return
            headed = False
            start = text.pos
            try:
                header = yield from text.until(MESSAGE, most=MAX_HEADER)
                if not self.header.fullmatch(header):
                    raise Broken
            except Broken:
                text.pos = start + 1  # not a header: content up to the next one
                parser.content(text.buffer[start : start + 1])
                continue
            yield from self._body(parser, header, start)

    def _between(self, parser: Parser) -> Wait[bool]:
        """Go to the next header. What comes before it, outside of any message, is content."""
        text = parser.text
        while True:
            match = text.find(self.headers)
            end = match[0] if match else len(text.buffer)
            if not match and not text.ended:
                end = text.held(self.headers)
            parser.content(text.buffer[text.pos : end])
            text.pos = end
            if match:
                return True
            if text.ended:
                return False
            text.forget()
            yield from text.more()

    def _body(self, parser: Parser, header: str, start: int) -> Wait[None]:
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        name = recipient[1] if recipient else ""
        if name and name != "assistant" and self.tools:
            yield from self._call(parser, name, start)
        elif channel is not None and channel[1] == "analysis" and not name:
            yield from self._stream(parser, reasoning=True)
        else:
            if name:  # no tools: a call is content
                parser.content(parser.text.buffer[start : parser.text.pos])
            yield from self._stream(parser, reasoning=False)

    def _stream(self, parser: Parser, *, reasoning: bool) -> Wait[None]:
        text = parser.text
        while True:
            match = text.find(self.body_ends)
            end = match[0] if match else len(text.buffer)
            if not match and not text.ended:
                end = text.held(self.body_ends)
            piece, text.pos = text.buffer[text.pos : end], end
            if reasoning:
                parser.reasoning(piece)
            else:
                parser.content(piece)
            if match:
                text.pos += len(match[1]) if match[1] in self.ends else 0
                return
            if text.ended:
                return
            text.forget()
            yield from text.more()

    def _call(self, parser: Parser, name: str, start: int) -> Wait[None]:
        text = parser.text
        try:
            body = yield from self._message(text)
            arguments = dump_json(arguments_of(parse_json(body) if body.strip() else {}))
        except Broken:
            parser.content(text.buffer[start : text.pos])
            return
        parser.calls([Call(name, arguments)])

    def _message(self, text: Text) -> Wait[str]:
        """Read a message's text, and the marker that ends it; the end of the output ends it
        too."""
        start = text.pos
        while (match := text.find(self.body_ends)) is None:
            if not (yield from text.more()):
                text.pos = len(text.buffer)
                return text.buffer[start:]
        text.pos = match[0] + (len(match[1]) if match[1] in self.ends else 0)
        return text.buffer[start : match[0]]
