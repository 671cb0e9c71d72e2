"""The description of a chat format, from which its output is parsed and its grammar is made.

A call is a sequence of parts: strings as the model writes them, and slots for what varies. The
reader treats white space at the ends of a string as optional.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Literal

from attrs import field, frozen

from inferno.contracts import ChatNeed


class Slot(Enum):
    """What varies in a call."""

    NAME = auto()
    """The tool's name."""
    RECIPIENT = auto()
    """The tool's name as the recipient of a message: ` to=NAME`."""
    ID = auto()
    """The call's id."""
    NAMED_ID = auto()
    """Name and index in one: functions.NAME:INDEX."""
    ARGUMENTS = auto()
    """The arguments as a JSON object."""
    GEMMA_ARGUMENTS = auto()
    """The arguments as {key:<|"|>text<|"|>,key:1}."""
    OBJECT = auto()
    """Name and arguments in one JSON object."""
    OBJECTS = auto()
    """A JSON array of such objects: all calls of a section."""
    PARAMETERS = auto()
    """Any number of `Calls.parameter`."""
    ELEMENTS = auto()
    """Arguments as elements, <key>value</key>, of which values may consist in turn; lists have
    elements named `item`. `Calls.parameter` is the marker before each tag."""
    PYTHON = auto()
    """Calls in Python: [f(a=1), g(b="x")]."""
    KEY = auto()
    """A parameter's name."""
    TYPE = auto()
    """Whether a parameter's value is a string: "true" or "string" if so."""
    VALUE = auto()
    """A parameter's value, as text."""


Part = str | Slot


@frozen(kw_only=True)
class Keys:
    """The keys of a JSON object that is a call."""

    name: str = "name"
    arguments: str = "arguments"
    id: str = ""
    """Empty: the model writes none."""
    single: bool = False
    """{"name": {arguments}} instead."""

    @property
    def known(self) -> frozenset[str]:
        """The keys that a call may have."""
        return frozenset(
            {self.name, self.arguments, self.id, "id", "type", "index", "parameters", "arguments"}
        )


@frozen(kw_only=True)
class Calls:
    """How calls are written."""

    call: tuple[Part, ...]
    opening: str = ""
    """Before the first call."""
    closing: str = ""
    """After the last one."""
    between: str = ""
    """Between two calls."""
    parameter: tuple[Part, ...] = ()
    keys: Keys = Keys()
    bare: bool = False
    """Whether a call begins without a marker: then it is the whole answer, of a known tool."""
    repeated: bool = True
    """Whether there may be more than one call."""

    @property
    def marker(self) -> str:
        """What calls begin with, up to its first white space; empty if bare."""
        return beginning(self.opening or self.call[0])


IdStyle = Literal["call", "alphanumeric", "named"]


@frozen(kw_only=True)
class Spec:
    """A family of chat formats."""

    name: str
    shows: tuple[str, ...]
    """Strings that its chat templates contain; all of them."""
    lacks: tuple[str, ...] = ()
    """Strings that they do not contain."""
    architectures: str = ""
    """A regular expression of the architectures; empty for any."""
    priority: int = 0
    reasoning: tuple[tuple[str, str], ...] = ()
    """(open, close) markers. The format has the first pair that the template shows."""
    always_reasons: bool = False
    """Whether it has its reasoning markers even if the template does not show them."""
    calls: tuple[Calls, ...] = ()
    """Alternatives. A grammar makes the first."""
    dropped: tuple[str, ...] = ()
    """Markers around content, which are not part of it."""
    answer: tuple[str, str] | None = None
    """(open, close) markers around all content, with the white space inside of them: dropped, too,
    and so is white space after the closing one."""
    salutation: str = ""
    """What content begins with where there are tools; not part of it."""
    ids: IdStyle = "call"
    """Ids of calls: call_ and 24 hexadecimal digits, 9 letters and digits, or
    functions.NAME:INDEX."""
    call_ends_reasoning: bool = False
    """Whether a call may begin in reasoning that was not closed."""
    grammar_lead: str = ""
    """What may come between reasoning and calls."""
    parser: Literal["tagged", "channels", "recipients"] = "tagged"
    prompt_tail: str = ""
    """A marker at the end of prompts that belongs to the output."""
    writes_tools: bool = False
    """Whether the chat template has no tools, so that they are written as text. Then the first of
    `calls` is a `Slot.OBJECT` between markers."""
    models: str = field(default="", eq=False)
    """Models that have it, for the documentation."""

    @property
    def around(self) -> tuple[str, ...]:
        """All markers around content."""
        return (*self.dropped, *(self.answer or ()))

    def matches(self, need: ChatNeed) -> str | None:
        """Return what in the checkpoint shows this format, or None."""
        template = need.template
        if not all(text in template for text in self.shows):
            return None
        if any(text in template for text in self.lacks):
            return None
        if self.architectures and not re.search(self.architectures, need.architecture):
            return None
        if self.writes_tools:
            why = "the chat template does not mention tools: they are written as text"
            return why if template else None
        shown = " and ".join(text.strip() for text in self.shows)
        if self.architectures:
            return f"the architecture is {need.architecture}" + (
                f" and its chat template has {shown}" if shown else ""
            )
        return f"the chat template has {shown}"


def beginning(part: Part) -> str:
    """Return a part up to its first white space, which is optional when it is read."""
    return part.split()[0] if isinstance(part, str) and part.strip() else ""


_MARKER = re.compile(r"\]<\]\w+\[>\[|<[^<>\s]+>|\[/?[A-Z_]+\]")


def strings(text: str) -> list[str]:
    """Return the markers in a part that may be single tokens."""
    return [*_MARKER.findall(text), *([text.strip()] if text.strip() else [])]
