from __future__ import annotations

import click


@click.group()
def scribe() -> None:
    """Write the tokens that follow others."""


@scribe.command()
@click.argument("ref")
@click.argument("tokens", type=int, nargs=-1, required=True)
@click.option("--count", type=int, default=4, help="How many tokens.")
def after(ref: str, tokens: tuple[int, ...], count: int) -> None:
    """Write the tokens that REF finds likeliest after TOKENS."""
    from inferno import LLM, SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=count)
    with LLM(ref, device="cpu", max_num_seqs=1) as llm:
        [output] = llm.generate([list(tokens)], greedy)
    click.echo(" ".join(map(str, output.outputs[0].token_ids)))
