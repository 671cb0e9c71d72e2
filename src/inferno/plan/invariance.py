"""`--batch-invariant`: what runs computes the same bits in every batch, or is refused by name."""

from __future__ import annotations

from inferno.contracts import ADAPTER_OPS, EXPERT_OPS, Device, ModelConfig
from inferno.errors import UnsupportedError
from inferno.plan.backends import BUILTIN
from inferno.plan.decided import Decided
from inferno.plan.options import Options
from inferno.plan.plan import TORCH
from inferno.plan.stages import Attention, ModelFacts, Weights

LEAVE_OUT = "or leave --batch-invariant out."
_NAMED = 4
"""Matrices that an error names; it counts the others."""


def check_asked(options: Options, device: Device, model: ModelFacts) -> None:
    """Refuse what is known before anything is chosen: where and what it computes. Raises
    UnsupportedError."""
    if not options.batch_invariant:
        return
    if device.kind != "cpu":
        raise UnsupportedError(
            f"nothing promises the same bits in every batch on {device}",
            f"Run it on the CPU, --device cpu, {LEAVE_OUT}",
        )
    if options.decode_with is not None:
        raise UnsupportedError(
            "prompts that another instance computes may have other bits than those computed here",
            f"Leave --decode-with out, {LEAVE_OUT}",
        )
    varies = model.architecture.value.varies
    if varies is not None and (why := varies(model.config)) is not None:
        raise UnsupportedError(
            f"{model.name} is not the same bits in every batch: {why}",
            f"Choose a model of another architecture, {LEAVE_OUT}",
        )


def choose_invariance(
    options: Options, model: ModelConfig, weights: Weights, attention: Attention, hint: str
) -> Decided[bool]:
    """Decide whether results are the same bits in every batch, with a note of what that costs.
    `hint` says which distribution has kernels. Raises UnsupportedError if the user asked for it and
    something that was chosen does not promise it."""
    if not options.batch_invariant:
        return Decided(False)
    if attention.states:
        layers = sum(len(use.layers) for use in attention.states)
        raise UnsupportedError(
            f"the recurrent states of {layers} layers depend on how a prompt is cut into steps, in "
            "their low bits",
            f"Choose a model with attention only, {LEAVE_OUT}",
        )
    if left := sorted(path for path, name in weights.products.items() if name == TORCH):
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        raise UnsupportedError(
            f"torch multiplies {', '.join(left[:_NAMED])}{more}, and its sums depend on the number "
            "of rows",
            f"{hint} Else take another scheme (--isq), {LEAVE_OUT}".lstrip(),
        )
    needed = {*(EXPERT_OPS if getattr(model, "num_experts", 0) else ())}
    needed |= {*(ADAPTER_OPS if weights.adapters.value is not None else ())}
    if missing := sorted(needed - {use.op for use in weights.kernels.value}):
        raise UnsupportedError(
            f"torch computes {', '.join(missing)}, and its sums depend on the number of rows",
            f"{hint} Install native kernels for these, {LEAVE_OUT}".lstrip(),
        )
    slow = sum(
        len(use.layers)
        for use in attention.uses
        if BUILTIN in (use.distribution, use.tokens and use.tokens.distribution)
    )
    notes = [
        f"batch-invariant: torch computes the attention of {slow} layers token by token, slowly"
    ]
    return Decided(True, notes=tuple(notes if slow else ()))
