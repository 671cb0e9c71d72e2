"""`inferno verify`: what a checkpoint could make inferno do."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

import rich_click as click

from inferno.cli.options import debug_option, declare
from inferno.errors import CheckpointError
from inferno.host import parse_size
from inferno.process.environment import environment


@declare
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=10.0,
    help="Limit of processor time for each; in all it may take four times as long.",
)
@click.option("--memory", default="4GiB", metavar="SIZE", help="Limit for each.")
@click.option(
    "--load/--no-load",
    default=False,
    help="Load the weights too, and generate two tokens: takes as long and as much memory as that.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
@debug_option
def command(refs: tuple[str, ...], seconds: float, memory: str, load: bool, as_json: bool) -> None:
    """Try checkpoints that you do not trust, each in a process without keys, with limits of time
    and memory, and where a sandbox is installed without a network and other files: its plan, its
    chat template, its tokenizer, the names of its tensors. Says what is unusual among its files.
    Ends with code 3 if one is refused, or had to be ended. A model of a hub must be there already:
    inferno pull."""
    fine = True
    for line in results(refs, seconds, parse_size(memory, "--memory"), load=load):
        verdict = json.loads(line)
        fine &= verdict["ended"] == "fine"
        click.echo(line if as_json else "\n".join(told(verdict)))
    if not fine:
        raise SystemExit(CheckpointError.exit_code)


def results(refs: Sequence[str], seconds: float, memory: int, *, load: bool) -> Iterator[str]:
    """Yield a trial's lines. Raises CheckpointError if it breaks off."""
    command = [sys.executable, "-m", "inferno_verify.trial", str(seconds), str(memory)]
    with (
        tempfile.TemporaryDirectory(prefix="inferno-", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            [*command, "01"[load], *refs],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(folder),
        ) as trial,
    ):
        assert trial.stdout is not None, "it is a pipe"
        yield from (line.rstrip("\n") for line in trial.stdout)
    if trial.returncode:
        raise CheckpointError(
            f"the trial ended with code {trial.returncode}", "Its messages are above."
        )


def told(found: dict[str, object]) -> Iterator[str]:
    """What people read of a result."""
    yield f"{found['ref']}: {found['ended']}, after {found['seconds']:.1f} s"
    done, odd = found["done"], found["odd"]
    assert isinstance(done, dict) and isinstance(odd, list), "as `trial.Result` has them"
    yield f"  {'sandbox':<10} {found['sandbox'] or 'none is installed that works here'}"
    yield from (f"  {stage:<10} {what}" for stage, what in done.items())
    yield from (f"  unusual    {sentence}" for sentence in odd)
    if found["sentence"]:
        yield f"  {found['ended']:<10} {found['sentence']}"
