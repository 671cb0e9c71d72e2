"""A conversation in the terminal: its messages, its settings, and the answers to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import rich_click as click
from attrs import Factory, define, field

from inferno.cli import arm_interrupt, report
from inferno.cli.chat_model import ChatModel, Dropped, Message, Usage
from inferno.cli.endings import MAKE_ROOM, SHORTEN, Ending
from inferno.cli.lines import say
from inferno.cli.screen import Screen
from inferno.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    InfernoError,
    OptionError,
    RequestError,
)
from inferno.request.sampling_params import Parameter, SamplingParams, parameters

SETTINGS: Mapping[str, Parameter] = {
    p.name: p for p in parameters() if p.flag and p.type in (int, float, bool, tuple[str, ...])
}
"""The sampling parameters that a line of text can set."""
MAX_FILE_BYTES = 2**20


@define
class Totals:
    """What a session has used."""

    answers: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def add(self, usage: Usage, seconds: float) -> None:
        self.answers += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.completion_tokens += usage.completion_tokens
        self.seconds += seconds


@define
class Conversation:
    """What was said, and how the next answer is generated."""

    model: ChatModel
    screen: Callable[[], Screen]
    """Makes the screen for one answer."""
    system: str = ""
    thinking: bool | None = None
    """None leaves it to the model's chat template."""
    settings: dict[str, Any] = field(factory=dict)
    """Sampling parameters that are not the model's defaults."""
    messages: list[Message] = field(factory=list)
    files: list[str] = field(factory=list)
    """Texts that go in front of the next message."""
    unanswered: str = ""
    """The last message, if it got no answer."""
    failed: InfernoError | None = None
    """Why the last message that failed has no answer, or not all of it."""
    thought: str = ""
    """The reasoning of the last answer."""
    totals: Totals = Factory(Totals)
    dropped: int = 0
    """How many of the oldest messages the last prompt went without."""

    def say(self, text: str) -> None:
        """Send a message and show the answer. One that is refused leaves the conversation as it
        was; one that Ctrl-C stops stays in it, as far as it came."""
        text = "\n\n".join([*self.files, text])
        self.files = []
        question = {"role": "user", "content": text}
        self.unanswered, answer = text, self._answer([*self.messages, question])
        if answer is not None:
            self.messages += [question, answer]
            self.unanswered = ""

    def retry(self) -> None:
        """Answer the last message again. Raises OptionError if there is none."""
        text = self.unanswered or self.undo()
        self.say(text)

    def undo(self) -> str:
        """Forget the last message and its answer. Returns the message. Raises OptionError."""
        if not self.messages:
            raise OptionError("there is no message yet", "Write one.")
        last = max(i for i, message in enumerate(self.messages) if message["role"] == "user")
        text = str(self.messages[last]["content"])
        del self.messages[last:]
        return text

    def clear(self) -> None:
        """Forget the messages, not the settings."""
        self.messages, self.files, self.unanswered, self.thought = [], [], "", ""
        self.dropped = 0

    def set(self, name: str, value: str) -> None:
        """Set a sampling parameter from text; "default" unsets it. Raises OptionError or
        RequestError."""
        if name not in SETTINGS:
            raise OptionError(f"there is no setting {name!r}", f"Use one of: {', '.join(SETTINGS)}")
        if value == "default":
            self.settings.pop(name, None)
            return
        parsed = _parsed(SETTINGS[name], value)
        attrs.evolve(SamplingParams(max_tokens=None), **{name: parsed})  # checks it
        self.settings[name] = parsed

    def attach(self, path: Path) -> int:
        """Put a text file in front of the next message. Returns its characters. Raises
        OptionError."""
        text = _read(path)
        fence = "```"
        while fence in text:
            fence += "`"
        self.files.append(f"{path.name}:\n{fence}\n{text.rstrip()}\n{fence}")
        return len(text)

    def save(self, path: Path) -> None:
        """Write the conversation as JSON, as the chat page exports it. Raises OptionError."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        saved = {
            "model": self.model.name,
            "sampling": self.settings,
            "messages": [*system, *self.messages],
        }
        try:
            path.write_text(json.dumps(saved, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise OptionError(f"{path} cannot be written: {error}", "Give another path.") from error

    def load(self, path: Path) -> None:
        """Go on with a saved conversation: its messages, system prompt and settings. Raises
        OptionError, and changes nothing then."""
        try:
            saved = json.loads(_read(path))
            messages = [_checked(message) for message in saved["messages"]]
            settings = {k: v for k, v in saved.get("sampling", {}).items() if k in SETTINGS}
            attrs.evolve(SamplingParams(max_tokens=None), **settings)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OptionError(
                f"{path} is not a saved conversation", "Give a file that /save has written."
            ) from error
        self.clear()
        if messages and messages[0]["role"] == "system":
            self.system = str(messages.pop(0)["content"])
        self.messages, self.settings = messages, settings

    def _say_dropped(self, count: int) -> None:
        if count > self.dropped:
            note = f"The context is full: the {count} oldest messages are not sent any more."
            say(note)
        self.dropped = count

    def _answer(self, messages: list[Message]) -> Message | None:
        """Generate and show the next message; None if there is nothing of it. Reports errors."""
        if self.system:
            messages = [{"role": "system", "content": self.system}, *messages]
        screen, usage, ending = self.screen(), Usage(0, 0, 0), Ending()
        parts: dict[str, str] = {"content": "", "reasoning": ""}
        start, first, stopped = time.perf_counter(), 0.0, False
        answer = self.model.answer(messages, self.settings, self.thinking)
        try:
            for new in answer:
                if isinstance(new, Usage):
                    usage = new
                    continue
                if isinstance(new, Ending):
                    ending = new
                    continue
                if isinstance(new, Dropped):
                    self._say_dropped(new.messages)
                    continue
                first = first or time.perf_counter()
                parts[new.kind] += new.text
                screen.show(new)
        except InfernoError as error:
            screen.close()
            self.failed = error
            if error.code == CONTEXT_LENGTH_EXCEEDED:  # other remedies cannot help a long chat
                remedy = MAKE_ROOM if self.messages else SHORTEN
                error = RequestError(error.cause, remedy, code=error.code)
            report(error)
            if not parts["content"]:
                return None
        except KeyboardInterrupt:
            arm_interrupt()
            stopped = True
        finally:
            screen.close()
        end = time.perf_counter()
        self.thought = parts["reasoning"]
        self.totals.add(usage, end - start)
        click.echo(click.style(_line(usage, start, first or end, end, stopped), dim=True), err=True)
        if note := ending.of_chat():
            say(note)
        if not parts["content"] and (stopped or ending.is_empty):
            return None
        thought = {"reasoning_content": self.thought} if self.thought else {}
        return {"role": "assistant", "content": parts["content"], **thought}


def _line(usage: Usage, start: float, first: float, end: float, stopped: bool) -> str:
    """212 tokens · 31.4 tokens/s · first after 0.21 s · 96 of 110 prompt tokens cached"""
    count, parts = usage.completion_tokens, []
    if count:
        parts.append(f"{count} tokens")
        if count > 1:
            parts.append(f"{(count - 1) / max(end - first, 1e-9):.1f} tokens/s")
        parts.append(f"first after {first - start:.2f} s")
        parts.append(f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached")
    return " · ".join([*parts, *(["stopped"] if stopped else [])])


def _parsed(parameter: Parameter, text: str) -> Any:
    if parameter.type is bool and text.lower() in ("on", "true", "yes", "off", "false", "no"):
        return text.lower() in ("on", "true", "yes")
    try:
        if parameter.type in (int, float):
            return parameter.type(text)
    except ValueError:
        pass
    else:
        if parameter.type == tuple[str, ...]:
            return (text,)
    raise OptionError(
        f"{parameter.name} cannot be {text!r}", parameter.help or "Give another value."
    )


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise OptionError(f"{path} is larger than 1 MiB", "Give a shorter file.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error}", "Give another path.") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{path} is not a text file in UTF-8", "Convert it first.") from error


def _checked(message: Any) -> Message:
    if not isinstance(message["role"], str) or not isinstance(message["content"], str | None):
        raise TypeError("no message")
    return dict(message)
