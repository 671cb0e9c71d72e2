"""`inferno generate`: answers to one or more prompts, streamed or as a batch."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import rich_click as click

from inferno.cli.early import engine_process
from inferno.cli.lines import say
from inferno.cli.options import declare, engine_options, ref_argument, template_option
from inferno.cli.rank import follows
from inferno.cli.sampling import sampling_options, take_sampling
from inferno.cli.structured import structured_options, take_structured
from inferno.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from inferno.cli.endings import Ending


@declare
@ref_argument
@click.option(
    "--prompt",
    "-p",
    "given",
    multiple=True,
    metavar="TEXT",
    help="Prompt to answer; may be repeated.",
)
@click.option("--prompts", metavar='"A | B"', help="Several prompts, separated by bars.")
@click.option(
    "--batch", type=click.IntRange(1), default=1, help="Run every prompt this many times."
)
@click.option("--system", help="A system message.")
@click.option("--thinking/--no-thinking", default=None, help="Turn reasoning on or off.")
@click.option("--raw", is_flag=True, help="Continue the prompt without the chat template.")
@click.option(
    "--stream/--no-stream",
    default=True,
    help="Print tokens as they are generated; one prompt only.",
)
@structured_options
@sampling_options
@template_option
@engine_options
def command(
    ref: str | None,
    given: tuple[str, ...],
    prompts: str | None,
    batch: int,
    stream: bool,
    raw: bool,
    system: str | None,
    thinking: bool | None,
    chat_template: str | None,
    **values: Any,
) -> None:
    """Answer prompts with REF: a directory, a file or a hub id."""
    if follows(ref, values):
        return
    sampling = take_sampling(values) | take_structured(values)
    SamplingParams(**{"max_tokens": None} | sampling)  # wrong values are errors before a load
    process = engine_process()
    from inferno.cli.session import opened, speed

    texts = _texts(given, prompts) * batch
    with opened(ref, values, chat_template, process) as run:
        inputs = [run.prompt(text, system=system, thinking=thinking, raw=raw) for text in texts]
        params = run.params(**sampling)
        if len(inputs) == 1 and stream:
            _say(run.stream(inputs[0], params), raw)
            return
        outputs, seconds = run.timed(lambda: run.llm.generate(inputs, params, lora=run.lora))
        for text, output in zip(texts, outputs, strict=True):
            if len(texts) > 1:
                click.echo(click.style(f"--- {text}", bold=True))
            click.echo(output.outputs[0].text)
        tokens = [len(output.outputs[0].token_ids) for output in outputs]
        click.echo(speed(sum(tokens), seconds, f"{len(tokens)} prompts"), err=True)
        answers = [output.outputs[0] for output in outputs]
        endings = [run.ending(params, len(a.token_ids), a, a.text) for a in answers]
        for ending, count in Counter(endings).items():
            _say(ending, raw, f"{count} of {len(answers)} answers: " if len(answers) > 1 else "")


def _say(ending: Ending, raw: bool, whose: str = "") -> None:
    if text := ending.of_command(raw=raw):
        say(whose + text)


def _texts(given: tuple[str, ...], prompts: str | None) -> list[str]:
    texts = list(given) + [part.strip() for part in (prompts or "").split("|") if part.strip()]
    if not texts and not sys.stdin.isatty():
        texts = [text for text in [sys.stdin.read().strip()] if text]
    if not texts:
        raise click.UsageError(
            "No prompt. Give one with --prompt, several with --prompts, or pipe one in."
        )
    return texts
