"""`inferno bench`: prefill and decode speed of a model in this process. `benchmarks/` compares
engines."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import rich_click as click

from inferno.cli.options import declare, engine_options, ref_argument

if TYPE_CHECKING:
    from inferno.cli.session import Run


@declare
@ref_argument
@click.option("--input-len", type=click.IntRange(1), default=128, help="Tokens in each prompt.")
@click.option(
    "--output-len", type=click.IntRange(2), default=64, help="Tokens to generate per prompt."
)
@click.option(
    "--concurrency",
    multiple=True,
    type=click.IntRange(1),
    default=(1, 16),
    help="Concurrent requests; may be repeated.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, help="Rounds; the median is shown.")
@engine_options
def command(
    ref: str | None,
    input_len: int,
    output_len: int,
    concurrency: tuple[int, ...],
    rounds: int,
    **values: Any,
) -> None:
    """Benchmark REF on random tokens, without prefix cache hits or early stops."""
    from statistics import median

    from inferno.cli.session import opened

    with opened(ref, values) as run:
        _round(run, 1, input_len, 2)  # the first step of a process allocates and compiles
        click.echo(f"{input_len} tokens in, {output_len} out, median of {rounds}")
        click.echo(
            f"{'concurrent':>10}  {'prefill tok/s':>13}  {'decode tok/s':>12}  {'per stream':>10}"
        )
        for count in concurrency:
            first = median(_round(run, count, input_len, 1) for _ in range(rounds))
            total = median(_round(run, count, input_len, output_len) for _ in range(rounds))
            decode = count * (output_len - 1) / max(total - first, 1e-9)
            click.echo(
                f"{count:>10}  {count * input_len / first:>13.1f}  {decode:>12.1f}  "
                f"{decode / count:>10.1f}"
            )


def _round(run: Run, count: int, input_len: int, output_len: int) -> float:
    """Seconds to finish `count` concurrent requests."""
    prompts = [[random.randrange(run.vocab_size) for _ in range(input_len)] for _ in range(count)]
    params = run.params(max_tokens=output_len, temperature=0, ignore_eos=True)
    return run.timed(lambda: run.llm.generate(prompts, params))[1]
