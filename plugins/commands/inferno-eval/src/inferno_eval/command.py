"""`inferno eval`: a model's perplexity of a text, and how far it is from another model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from inferno.cli.options import chosen, declare, engine_options, plan_options, ref_argument
from inferno.errors import OptionError

if TYPE_CHECKING:
    from inferno_eval.measures import Perplexity
    from inferno_eval.report import Report


@declare
@ref_argument
@click.option("--text", metavar="FILE", help="Text to predict, in UTF-8.")
@click.option(
    "--against",
    metavar="REF",
    help="Reference to compare REF with: the model that it was quantized from.",
)
@click.option("--window", type=int, default=512, help="Tokens that the model sees at once.")
@click.option(
    "--stride",
    type=int,
    help="Distance in tokens from one window to the next; the last tokens of each are scored. "
    "[default: windows follow each other, and their second halves are scored]",
)
@click.option(
    "--limit", type=click.IntRange(1), help="Maximum number of windows. [default: the whole text]"
)
@click.option(
    "--by",
    type=click.Choice(("layers", "modules", "none")),
    default="layers",
    help="Measure groups of modules separately: consecutive layers, or all modules of one name.",
)
@click.option(
    "--groups", type=click.IntRange(1), default=4, help="Maximum number of groups of layers."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--plot", "plotted", metavar="FILE", help="Write a chart of the groups, as SVG.")
@engine_options
def command(
    ref: str | None,
    text: str | None,
    against: str | None,
    window: int,
    stride: int | None,
    limit: int | None,
    by: str,
    groups: int,
    as_json: bool,
    plotted: str | None,
    **values: Any,
) -> None:
    """Compute REF's perplexity on a text, as llama-perplexity does, and how far its predictions are
    from those of another model. --isq, --override and --revision apply to REF only."""
    from inferno_eval.evaluate import evaluate
    from inferno_eval.plot import plot
    from inferno_eval.report import report_to_json

    if text is None:
        raise OptionError("--text is missing", "Name a file: --text FILE.")
    if plotted is not None and against is None:
        raise OptionError(
            "--plot draws a comparison of two models", "Name the other one: --against REF."
        )
    if plotted is not None and not Path(plotted).absolute().parent.is_dir():
        raise OptionError(f"the folder of {plotted} does not exist", "Make the folder first.")
    report = evaluate(
        chosen(ref),
        text=text,
        against=against,
        options=plan_options(values),
        window=window,
        stride=stride,
        limit=limit,
        by=by,
        groups=groups,
        progress=_progress,
    )
    if plotted is not None:
        Path(plotted).write_text(plot(report), encoding="utf-8")
    click.echo(report_to_json(report) if as_json else "\n".join(table(report)))


def _progress(model: str, done: int, count: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == count else ""
        print(f"\r{model}: {done} of {count} tokens", end=end, file=sys.stderr, flush=True)


def table(report: Report) -> Iterator[str]:
    """Yield the lines of a report for people."""
    stride = "" if report.stride is None else f", stride {report.stride}"
    yield click.style(report.model, bold=True)
    yield (
        f"  text        {report.text}: {report.num_tokens} tokens scored in {report.num_windows} "
        f"windows of {report.window}{stride}"
    )
    yield f"  perplexity  {_perplexity(report.perplexity)}"
    if report.divergence is None or report.reference_perplexity is None:
        return
    shift = report.divergence
    yield f"  reference   {_perplexity(report.reference_perplexity)}: {report.reference}"
    yield f"  ratio       {shift.perplexity_ratio:.5f} ± {shift.ratio_error:.5f}"
    yield (
        f"  KL          mean {shift.mean:.5f} ± {shift.error:.5f}, median {shift.median:.5f}, "
        f"99% {shift.p99:.4f}, max {shift.max:.3f} nats"
    )
    yield (
        f"  top token   same at {100 * shift.top1:.2f} ± {100 * shift.top1_error:.2f} %; "
        f"{shift.flips} flips: {shift.lost} lost the text's token, {shift.gained} found it"
    )
    if report.groups:
        yield ""
        yield from _groups(report)
    for note in report.notes:
        yield f"  note        {note}"


def _perplexity(found: Perplexity) -> str:
    return f"{found.value:.4f} ± {found.error:.4f}"


def _groups(report: Report) -> Iterator[str]:
    """Yield a row for each group, with what it costs alone."""
    from inferno.host import UNITS, format_bytes

    title = "in the reference"
    width = max(len(title), *(len(group.name) for group in report.groups))
    head = ("mean KL", "median", "99%", "max", "same top", "flips", "saves", "KL/MiB")
    yield f"  {title:<{width}}" + "".join(f" {name:>9}" for name in head)
    for group in report.groups:
        if (shift := group.divergence) is None:
            yield f"  {group.name:<{width}}  not swapped: {group.note}"
            continue
        cells = (
            f"{shift.mean:.5f}",
            f"{shift.median:.5f}",
            f"{shift.p99:.4f}",
            f"{shift.max:.3f}",
            f"{100 * shift.top1:.2f} %",
            str(shift.flips),
            format_bytes(group.saved),
            f"{shift.mean / group.saved * UNITS['MI']:.5f}" if group.saved > 0 else "",
        )
        yield f"  {group.name:<{width}}" + "".join(f" {cell:>9}" for cell in cells)
