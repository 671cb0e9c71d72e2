"""Chooses whether a device fetches experts from the host's memory, and in which steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from inferno import host
from inferno.contracts import Device, HeldMatrix, expert_of
from inferno.errors import OptionError, OutOfMemoryError
from inferno.plan.decided import Decided
from inferno.plan.fetch_use import FetchUse
from inferno.plan.options import Options

BUFFERS = 2
"""Experts of one form that are on the device at once (`nn.fetching.BUFFERS`)."""


def choose_fetching(
    options: Options,
    device: Device,
    chosen: Mapping[str, HeldMatrix],
    nbytes: int,
    room: float,
) -> Decided[FetchUse | None]:
    """Choose it for the matrices of experts on the host, by path. `nbytes` are those of a rank,
    `room` those that all of them may take. Raises OptionError, OutOfMemoryError."""
    asked = options.fetch_experts_from
    if asked == "never":
        return Decided(None)
    if device.kind == "cpu":
        note = f"--fetch-experts-from {asked} changes nothing here: the device is the host"
        return Decided(None, notes=() if asked == "auto" else (note,))
    use = FetchUse(
        from_tokens=None if asked == "auto" else int(asked), buffer_bytes=_buffer_bytes(chosen)
    )
    if use.from_tokens == 1:
        return Decided(use)
    if options.batch_invariant:
        if asked == "auto":
            note = "the host computes its experts in all steps: --batch-invariant needs one way"
            return Decided(None, notes=(note,))
        raise OptionError(
            f"--fetch-experts-from {asked}: with --batch-invariant no result may depend on how "
            "many tokens a step has",
            "Use never, or 1: then all steps are computed alike.",
        )
    both = 2 * nbytes * options.processes_here
    if both <= room:
        return Decided(use)
    need = f"host and device each need a copy, {host.format_bytes(both)} together"
    if asked == "auto":
        note = f"the host computes its experts in all steps: to fetch some, {need}"
        return Decided(None, notes=(note,))
    raise OutOfMemoryError(
        f"--fetch-experts-from {asked}: {need}, and {host.format_bytes(int(room))} of the host's "
        "memory may be used",
        "Use never, or 1, which take one copy; or a smaller --experts-on-host.",
    )


def _buffer_bytes(chosen: Mapping[str, HeldMatrix]) -> int:
    """Return the bytes of the buffers: for experts of each form."""
    experts = defaultdict[tuple[str, int], dict[str, HeldMatrix]](dict)
    for path, matrix in chosen.items():
        if (expert := expert_of(path)) is not None:
            name = path.removeprefix(f"{expert[0]}.{expert[1]}.")
            experts[expert][name] = matrix
    forms = {
        tuple(sorted((name, m.shape, m.layout or "", m.nbytes) for name, m in each.items()))
        for each in experts.values()
    }
    return BUFFERS * sum(nbytes for form in forms for *_, nbytes in form)
