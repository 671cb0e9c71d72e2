"""`inferno chat`: a conversation in the terminal. Ctrl-C stops an answer and nothing else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from inferno.cli import arm_interrupt, report
from inferno.cli.early import engine_process
from inferno.cli.options import declare, engine_options, ref_argument, template_option
from inferno.cli.sampling import sampling_options, take_sampling
from inferno.errors import InfernoError, OptionError

if TYPE_CHECKING:
    from inferno.cli.chat_model import ChatModel
    from inferno.cli.conversation import Conversation
    from inferno.cli.prompt import Reader


@declare
@ref_argument
@click.option("--system", help="A system message.")
@click.option("--thinking/--no-thinking", default=None, help="Turn reasoning on or off.")
@click.option(
    "--url",
    envvar="OPENAI_BASE_URL",
    help="Chat with this server instead, any that has OpenAI's API; REF is then its model's name. "
    "[default: OPENAI_BASE_URL, if REF is left out]",
)
@click.option(
    "--api-key", envvar="OPENAI_API_KEY", help="The server's key. [default: OPENAI_API_KEY]"
)
@click.option(
    "--history/--no-history", default=True, help="Keep what is typed for the next session."
)
@click.option(
    "--context-overflow",
    type=click.Choice(["refuse", "drop-oldest"]),
    default="refuse",
    help="What to do when the conversation no longer fits: refuse the message, or go on without "
    "the oldest turns.",
)
@sampling_options
@template_option
@engine_options
def command(
    ref: str | None,
    system: str | None,
    thinking: bool | None,
    url: str | None,
    api_key: str | None,
    history: bool,
    context_overflow: str,
    chat_template: str | None,
    **values: Any,
) -> None:
    """Chat with REF. /help lists the commands. Input may be piped in: each line is one message."""
    sampling = take_sampling(values)
    source = get_current_context().get_parameter_source("url")
    if url and source is ParameterSource.ENVIRONMENT:
        if ref is None:
            click.echo(f"No model named: using the server at {url}.", err=True)
        else:
            url = None  # a variable for other programs does not make a path or hub id a server's
    values["chat_template"] = chat_template
    drops = context_overflow == "drop-oldest"
    opening = _remote(url, api_key, ref, values, drops) if url else _local(ref, values, drops)
    from inferno.cli.chat_commands import COMMANDS
    from inferno.cli.prompt import message_reader

    # The reader first: what is typed while the model loads waits for the prompt, its Enter too.
    with message_reader(list(COMMANDS), history) as read, opening as model:
        from inferno.cli.conversation import Conversation

        conversation = Conversation(
            model, _screen(), system=system or "", thinking=thinking, settings=sampling
        )
        if sys.stdin.isatty():
            click.echo(f"{model.name}. /help lists the commands.", err=True)
        _talk(conversation, read)
    if conversation.failed is not None and not sys.stdin.isatty():
        sys.exit(conversation.failed.exit_code)


def _talk(conversation: Conversation, read: Reader) -> None:
    """Read and obey until the end."""
    from inferno.cli.chat_commands import Exit, obey

    warned = False
    while True:
        try:
            line = read("> " if not conversation.files else f"[{len(conversation.files)} files] > ")
        except KeyboardInterrupt:
            if warned:
                raise
            arm_interrupt()
            warned = True
            click.echo("Press Ctrl-C again to exit.", err=True)
            continue
        warned = False
        try:
            if line is None:
                return
            if line.startswith("/") and not line.startswith("//"):
                obey(conversation, line)
            elif line:
                conversation.say(line.removeprefix("/") if line.startswith("//") else line)
        except Exit:
            return
        except InfernoError as error:
            report(error)


@contextlib.contextmanager
def _local(ref: str | None, values: dict[str, Any], drops_oldest: bool) -> Iterator[ChatModel]:
    process = engine_process()
    from inferno.cli import session
    from inferno.cli.chat_model import LocalModel

    chat_template = values.pop("chat_template")
    with session.opened(ref, values, chat_template, process) as run:
        yield LocalModel(run, drops_oldest=drops_oldest)


@contextlib.contextmanager
def _remote(
    url: str, key: str | None, name: str | None, values: dict[str, Any], drops_oldest: bool
) -> Iterator[ChatModel]:
    from inferno.cli.remote import RemoteModel

    for option, value in values.items():
        if value not in (None, (), False):
            raise OptionError(
                f"--{option.replace('_', '-')} is for a model in this process, not for {url}",
                "Leave it out.",
            )
    with contextlib.closing(RemoteModel(url, key, name, drops_oldest=drops_oldest)) as model:
        yield model


def _screen() -> Any:
    from inferno.cli.screen import Plain, Terminal

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Plain
    from rich.console import Console

    console = Console()
    return lambda: Terminal(console)
