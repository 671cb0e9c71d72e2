"""Sampling options, and their way into `SamplingParams`. What is not given is left to the model's
own defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import rich_click as click

from inferno.cli.options import together
from inferno.errors import OptionError

_option = partial(click.option, panel="Sampling")

sampling_options = together(
    [
        _option(
            "--max-tokens",
            type=int,
            help="Most tokens to generate. [default: the model's, else 256]",
        ),
        _option("--min-tokens", type=int, help="No end before this many tokens."),
        _option(
            "--temperature",
            "-t",
            type=float,
            help="0 takes the most likely token. [default: the model's]",
        ),
        _option("--top-k", type=int, help="Keep the k most likely tokens."),
        _option(
            "--top-p", type=float, help="Keep the most likely tokens that sum to this probability."
        ),
        _option(
            "--min-p", type=float, help="Keep tokens this likely, relative to the most likely."
        ),
        _option("--presence-penalty", type=float, help="Against tokens generated before."),
        _option("--frequency-penalty", type=float, help="The same, for each time."),
        _option(
            "--repetition-penalty",
            type=float,
            help="Against tokens in prompt or output; 1 is none.",
        ),
        _option(
            "--repeat-last-n", type=int, help="How far back --repetition-penalty looks; -1 is all."
        ),
        _option(
            "--logit-bias",
            multiple=True,
            metavar="ID=BIAS",
            help="Added to a token's logit; may be repeated.",
        ),
        _option("--stop", multiple=True, help="A text that ends the output; may be repeated."),
        _option(
            "--stop-token-ids",
            multiple=True,
            type=int,
            help="A token id that ends it; may be repeated.",
        ),
        _option("--ignore-eos", is_flag=True, default=None, help="Go on past the model's own end."),
        _option("--seed", type=int, help="The same seed gives the same text."),
    ]
)


def take_sampling(values: dict[str, Any]) -> dict[str, Any]:
    """Moves the sampling options out of `values`: what was given, by `SamplingParams`' names."""
    names = [
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "repeat_last_n",
        "logit_bias",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "seed",
    ]
    taken = {name: values.pop(name) for name in names}
    given = {name: value for name, value in taken.items() if value is not None and value != ()}
    if "logit_bias" in given:
        given["logit_bias"] = _biases(given["logit_bias"])
    return given


def _biases(pairs: tuple[str, ...]) -> Mapping[int, float]:
    try:
        return {int(token): float(bias) for token, bias in (pair.split("=") for pair in pairs)}
    except ValueError:
        raise OptionError(
            f"--logit-bias {' '.join(pairs)} is not ID=BIAS", "As in --logit-bias 42=-100."
        ) from None
