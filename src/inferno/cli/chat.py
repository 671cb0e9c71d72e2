"""`inferno chat`: a conversation in the terminal. Ctrl-C stops an answer, and at the prompt it
exits."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import rich_click as click

from inferno.cli import arm_interrupt, report
from inferno.cli.options import declare, engine_options, ref_argument, template_option
from inferno.cli.sampling import sampling_options, take_sampling
from inferno.errors import RequestError

if TYPE_CHECKING:
    from inferno.cli.session import Run


@declare
@ref_argument
@click.option("--system", help="A system message.")
@click.option("--thinking/--no-thinking", default=None, help="Turn reasoning on or off.")
@sampling_options
@template_option
@engine_options
def command(
    ref: str | None,
    system: str | None,
    thinking: bool | None,
    chat_template: str | None,
    **values: Any,
) -> None:
    """Chat with REF. Input may be piped in: each line is one message."""
    from inferno.cli.session import opened

    sampling = take_sampling(values)
    with opened(ref, values, chat_template) as run:
        params = run.params(**sampling)
        start = [{"role": "system", "content": system}] if system else []
        messages = list(start)
        while (line := _ask()) is not None:
            if line in ("/exit", "/quit"):
                return
            if line == "/reset":
                messages = list(start)
            elif line.startswith("/"):
                click.echo("Commands: /reset clears the conversation, /exit quits.", err=True)
            elif line:
                _answer(run, messages, line, params, thinking)


def _ask() -> str | None:
    """The next line, or None at the end of the input."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip() if line else None
    with suppress(ImportError):
        import readline  # noqa: F401  gives input() line editing and history
    try:
        return input("> ").strip()
    except EOFError:
        return None


def _answer(
    run: Run, messages: list[dict[str, str]], line: str, params: Any, thinking: bool | None
) -> None:
    question = {"role": "user", "content": line}
    try:
        text = run.stream(run.chat_prompt([*messages, question], thinking), params)
    except RequestError as error:  # too long, or refused by the template: keep the conversation
        report(error)
    except KeyboardInterrupt:
        arm_interrupt()
        click.echo("\n(stopped)", err=True)
    else:
        messages += [question, {"role": "assistant", "content": text}]
