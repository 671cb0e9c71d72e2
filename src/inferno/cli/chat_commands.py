"""The commands of `inferno chat`, which begin with a slash."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import rich_click as click
from attrs import frozen

from inferno.cli.conversation import SETTINGS, Conversation
from inferno.cli.lines import say, width_of, wrapped
from inferno.cli.prompt import KEYS
from inferno.errors import OptionError

_THINKING = {"on": True, "off": False, "default": None}


class Exit(Exception):
    """Raised to end the chat."""


@frozen
class Command:
    """One command. `run(conversation, rest)` gets what follows its name."""

    usage: str
    help: str
    run: Callable[[Conversation, str], None]


def obey(conversation: Conversation, line: str) -> None:
    """Run the command that `line` names. Raises Exit at the end of the chat, and InfernoError."""
    name, _, rest = line.partition(" ")
    if name not in COMMANDS:
        raise OptionError(
            f"there is no command {name[:40]}",
            "/help lists them. A message that begins with a slash needs two: //usr/bin is a path.",
        )
    COMMANDS[name].run(conversation, rest.strip())


def _help(conversation: Conversation, rest: str) -> None:
    shown = {id(command): command for command in COMMANDS.values()}.values()
    width = max(len(command.usage) for command in shown)
    for command in shown:
        line = f"  {command.usage:{width}}  {command.help}"
        click.echo(wrapped(line, width_of(sys.stderr), width + 4), err=True)
    say(KEYS)


def _clear(conversation: Conversation, rest: str) -> None:
    conversation.clear()
    say("The conversation is empty.")


def _system(conversation: Conversation, rest: str) -> None:
    if rest:
        conversation.system = "" if rest == "none" else rest
    say(f"System prompt: {conversation.system or 'none'}")


def _set(conversation: Conversation, rest: str) -> None:
    name, _, value = rest.partition(" ")
    if value:
        conversation.set(name, value.strip())
    elif name and name not in SETTINGS:
        conversation.set(name, "default")  # raises, and lists the names
    for each in [name] if name else SETTINGS:
        value = conversation.settings.get(each, "default")
        say(f"  {each} = {value}" + ("" if not name else f"  ({SETTINGS[each].help})"))


def _think(conversation: Conversation, rest: str) -> None:
    if rest == "show":
        click.echo(click.style(conversation.thought.strip() or "No thoughts.", dim=True))
        return
    if rest and rest not in _THINKING:
        raise OptionError(f"/think cannot be {rest[:40]!r}", "Use on, off, default or show.")
    if rest:
        conversation.thinking = _THINKING[rest]
    state = next(word for word, value in _THINKING.items() if value is conversation.thinking)
    say(f"Thinking: {state}")


def _file(conversation: Conversation, rest: str) -> None:
    if not rest:
        raise OptionError("/file needs a path", "/file notes.txt")
    length = conversation.attach(Path(rest).expanduser())
    say(f"{Path(rest).name}: {length} characters go with the next message.")


def _save(conversation: Conversation, rest: str) -> None:
    path = _path(rest, "/save")
    conversation.save(path)
    say(f"Saved {len(conversation.messages)} messages as {path}")


def _load(conversation: Conversation, rest: str) -> None:
    conversation.load(_path(rest, "/load"))
    say(f"Loaded {len(conversation.messages)} messages.")


def _path(rest: str, command: str) -> Path:
    if not rest:
        raise OptionError(f"{command} needs a path", f"{command} chat.json")
    return Path(rest).expanduser()


def _model(conversation: Conversation, rest: str) -> None:
    if rest:
        conversation.model.choose(rest)
    for name in dict.fromkeys([conversation.model.name, *conversation.model.names()]):
        say(f"  {name}" + (" (answers)" if name == conversation.model.name else ""))


def _stats(conversation: Conversation, rest: str) -> None:
    used = conversation.totals
    rate = used.completion_tokens / max(used.seconds, 1e-9)
    answers = f"{used.answers} answer{'s' * (used.answers != 1)}"
    say(
        f"  {answers}, {used.completion_tokens} tokens in {used.seconds:.1f} s "
        f"({rate:.1f} tokens/s with their prompts)\n"
        f"  {used.prompt_tokens} prompt tokens, {used.cached_tokens} of them cached"
    )


def _retry(conversation: Conversation, rest: str) -> None:
    conversation.retry()


def _undo(conversation: Conversation, rest: str) -> None:
    from inferno.cli.screen import printable

    text = " ".join(conversation.undo().split())
    # As it is, not as Python would write it: emoji are joined by characters that it escapes.
    text = printable(text if len(text) <= 60 else f"{text[:60]}...")
    say(f'Forgot "{text}" and its answer.')


def _exit(conversation: Conversation, rest: str) -> None:
    raise Exit


_CLEAR = Command("/clear, /reset", "Forget the conversation, keep the settings.", _clear)
_EXIT = Command("/exit, /quit", "Exit.", _exit)
COMMANDS: Mapping[str, Command] = {
    "/help": Command("/help", "List the commands.", _help),
    "/retry": Command("/retry", "Answer the last message again.", _retry),
    "/undo": Command("/undo", "Forget the last message and its answer.", _undo),
    "/clear": _CLEAR,
    "/reset": _CLEAR,
    "/file": Command("/file PATH", "Put a text file in front of the next message.", _file),
    "/system": Command(
        "/system [TEXT]", "Show or change the system prompt; none drops it.", _system
    ),
    "/set": Command("/set [NAME [VALUE]]", "Show or change a setting: /set temperature 0.7", _set),
    "/think": Command(
        "/think [on|off|default|show]", "Turn reasoning on or off, or print the last one.", _think
    ),
    "/model": Command("/model [NAME]", "List a server's models, or change to one.", _model),
    "/stats": Command("/stats", "Tokens and speed of this session.", _stats),
    "/save": Command("/save PATH", "Write the conversation to a file.", _save),
    "/load": Command("/load PATH", "Go on with a saved conversation.", _load),
    "/exit": _EXIT,
    "/quit": _EXIT,
}
