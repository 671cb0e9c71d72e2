"""`inferno bench`: prefill and decode speed of a model in this process.
`benchmarks/` compares engines."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import rich_click as click
from attrs import asdict, evolve, frozen
from click.core import ParameterSource
from click.globals import get_current_context

from inferno.cli.options import declare, engine_options, ref_argument
from inferno.errors import OptionError

if TYPE_CHECKING:
    from inferno.cli.session import Run


@frozen
class Speed:
    """Speed of some concurrent requests, in tokens per second of all together."""

    concurrent: int
    prefill: float
    decode: float


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
@click.option(
    "--ragged",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Instead: run nano-vllm's workload with this number of requests at once: prompts and "
    "outputs of 100 to 1024 tokens, drawn with seed 0.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@engine_options
def command(
    ref: str | None,
    input_len: int,
    output_len: int,
    concurrency: tuple[int, ...],
    rounds: int,
    ragged: int | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Benchmark REF on random tokens, without prefix cache hits or early stops."""
    from inferno.cli.session import opened

    if ragged is not None:
        _check_alone("--ragged", "input_len", "output_len", "concurrency", "rounds")
        values = {"max_num_seqs": max(ragged, 1), "max_num_batched_tokens": 16_384} | {
            name: value for name, value in values.items() if value is not None
        }
    with opened(ref, values) as run:
        _round(run, 1, input_len, 2)  # the first step of a process allocates and compiles
        if ragged is not None:
            _ragged(run, ragged, as_json)
        else:
            _uniform(run, input_len, output_len, concurrency, rounds, as_json)


def _check_alone(option: str, *others: str) -> None:
    """Raise OptionError if parameters are given that do not apply to an option."""
    context = get_current_context()
    for name in others:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            flag = f"--{name.replace('_', '-')}"
            raise OptionError(f"{flag} does not apply to {option}", "Leave one of them out.")


def _uniform(
    run: Run,
    input_len: int,
    output_len: int,
    concurrency: tuple[int, ...],
    rounds: int,
    as_json: bool,
) -> None:
    """Measure requests of equal lengths."""
    from statistics import median

    if not as_json:
        click.echo(f"{input_len} tokens in, {output_len} out, median of {rounds}")
        click.echo(
            f"{'concurrent':>10}  {'prefill tok/s':>13}  {'decode tok/s':>12}  {'per stream':>10}"
        )
    speeds = []
    for count in concurrency:
        first = median(_round(run, count, input_len, 1) for _ in range(rounds))
        total = median(_round(run, count, input_len, output_len) for _ in range(rounds))
        decode = count * (output_len - 1) / max(total - first, 1e-9)
        speed = Speed(count, count * input_len / first, decode)
        speeds.append(asdict(speed))
        if not as_json:
            click.echo(
                f"{count:>10}  {speed.prefill:>13.1f}  {decode:>12.1f}  {decode / count:>10.1f}"
            )
    if as_json:
        about = {"model": run.model_id, "input_len": input_len, "output_len": output_len}
        click.echo(json.dumps({**about, "tokens_per_second": speeds}, indent=2))


def _ragged(run: Run, count: int, as_json: bool) -> None:
    """Measure requests of many lengths at once."""
    from inferno.cli.ragged import ragged_load

    load = ragged_load(count, vocab_size=run.vocab_size)
    params = [
        evolve(run.params(temperature=0.6, ignore_eos=True), max_tokens=length)
        for length in load.output_lens
    ]
    prompts = [list(prompt) for prompt in load.prompts]
    _, seconds = run.timed(lambda: run.llm.generate(prompts, params))
    rate = load.output_tokens / seconds
    if as_json:
        about = {"model": run.model_id, "requests": count, "prompt_tokens": load.prompt_tokens}
        more = {"output_tokens": load.output_tokens, "seconds": seconds}
        click.echo(json.dumps({**about, **more, "output_tokens_per_second": rate}, indent=2))
    else:
        click.echo(
            f"{count} requests, {load.prompt_tokens} tokens in, {load.output_tokens} out: "
            f"{seconds:.1f} s, {rate:.1f} output tok/s"
        )


def _round(run: Run, count: int, input_len: int, output_len: int) -> float:
    """Seconds to finish `count` concurrent requests."""
    prompts = [[random.randrange(run.vocab_size) for _ in range(input_len)] for _ in range(count)]
    params = run.params(max_tokens=output_len, temperature=0, ignore_eos=True)
    return run.timed(lambda: run.llm.generate(prompts, params))[1]
