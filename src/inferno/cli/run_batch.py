"""`inferno run-batch`: the requests of a file, answered without a server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from inferno.cli.early import engine_process
from inferno.cli.options import chosen, declare, engine_options, plan_options, template_option

if TYPE_CHECKING:
    from inferno.server.batches.offline import Summary


@declare
@click.option(
    "--input",
    "-i",
    "source",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of requests, one JSON object a line, in the format of OpenAI's Batch API.",
)
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of answers. Requests that it already has answers for are skipped.",
)
@click.option("--model", "ref", metavar="REF", help="Model that answers.")
@click.option(
    "--served-model-name",
    "names",
    multiple=True,
    help="Name of the model in the requests; may be repeated. [default: its id]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    help="Requests in progress at once. [default: twice --max-num-seqs]",
)
@template_option
@engine_options
def command(
    source: Path,
    output: Path,
    ref: str | None,
    names: tuple[str, ...],
    concurrency: int | None,
    chat_template: str | None,
    **values: Any,
) -> None:
    """Answer the requests of a file with REF, and write each answer as soon as it is there. After
    Ctrl-C, the same command continues. Exits with 1 if a request failed."""
    import asyncio

    process = engine_process()
    from inferno.llm import AsyncLLM
    from inferno.plan import open_model
    from inferno.server import ServerOptions, create_app
    from inferno.server.batches.offline import Summary, read_lines, resume, run, started

    done, summary = resume(output), Summary()
    with source.open("rb") as file:
        total, left = _count(read_lines(file, done))
    start = time.perf_counter()
    if left:
        opened = open_model(chosen(ref), plan_options(values))
        llm = AsyncLLM.of_opened(opened, chat_template, early=process)
        app = create_app(
            llm, ServerOptions(served_names=names, max_waiting=None, page=False, prompt_history=0)
        )
        wanted = concurrency or 2 * opened.plan.max_num_seqs * max(1, len(llm.engines))

        async def work() -> None:
            nonlocal start
            async with started(app):
                start = time.perf_counter()
                with source.open("rb") as file, output.open("ab") as answers, _bar(total) as show:
                    lines = read_lines(file, done)
                    await run(app, lines, answers, summary, concurrency=wanted, progress=show)

        asyncio.run(work())
    else:
        summary.skipped = total
    seconds = time.perf_counter() - start
    tokens = summary.completion_tokens
    click.echo(
        f"{summary.answered} answered, {summary.failed} failed, {summary.skipped} skipped in "
        f"{seconds:.1f} s: {summary.prompt_tokens} prompt tokens, {tokens} generated "
        f"({tokens / max(seconds, 1e-9):.1f} tokens/s)",
        err=True,
    )
    if summary.failed:
        click.echo(f"{output} says why requests failed, in their `error`.", err=True)
        raise SystemExit(1)


def _count(lines: Iterable[object]) -> tuple[int, int]:
    """Return the number of requests, and of those that are not done."""
    total = left = 0
    for line in lines:
        total += 1
        left += line is not None
    return total, left


@contextmanager
def _bar(total: int) -> Iterator[Callable[[Summary], None]]:
    """Yield what shows the progress: as a bar on a terminal, else not at all."""
    if not sys.stderr.isatty():
        yield lambda summary: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)
        yield lambda summary: progress.update(task, completed=summary.done)
