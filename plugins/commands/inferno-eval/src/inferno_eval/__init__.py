"""The quality of a model: its perplexity on a text, and its divergence from another model.

Both are computed as they are served: with the plan's weights, kernels and paged cache. For Python:
`inferno_eval.evaluate.evaluate`.
"""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Command


@hookimpl
def inferno_commands() -> list[Command]:
    return [
        Command(
            name="eval",
            help="Measure a model's perplexity, and how far it is from another model.",
            command="inferno_eval.command:command",
        )
    ]
