"""Chooses which routed experts stay in the host's memory, and what computes them there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping

from attrs import evolve

from inferno import host
from inferno.catalog import Catalog
from inferno.contracts import (
    DTYPE_BYTES,
    GROUPED,
    Device,
    DType,
    HeldMatrix,
    KernelNeed,
    ModelConfig,
    expert_of,
)
from inferno.errors import OptionError, OutOfMemoryError, UnsupportedError
from inferno.plan.adapter_use import AdapterRoom
from inferno.plan.backends import kernels_for
from inferno.plan.decided import Decided
from inferno.plan.devices import Machine
from inferno.plan.fetching import choose_fetching
from inferno.plan.host_use import HostExpertsUse
from inferno.plan.memory import CPU_PERCENT
from inferno.plan.options import Options
from inferno.plan.plan import TORCH, by_pattern, pattern_of

OPS = ("gather", "silu_mul", "dispatch", "combine")
"""What a group of experts needs besides products."""
_LEAVE_OUT = "Leave --experts-on-host out"


def choose_host_experts(
    catalog: Catalog,
    options: Options,
    device: Device,
    machine: Machine,
    held: Mapping[str, HeldMatrix],
    model: ModelConfig,
    dtype: DType,
    adapters: AdapterRoom | None,
    largest: Callable[[Mapping[str, int]], int],
) -> Decided[HostExpertsUse | None]:
    """Choose the experts among the matrices that one rank has in any stage, by path; `largest`
    returns what one rank has of sizes by path. Raises OptionError, UnsupportedError,
    OutOfMemoryError."""
    if not (count := options.experts_on_host):
        if options.fetch_experts_from != "auto":
            raise OptionError(
                f"--fetch-experts-from {options.fetch_experts_from}: no experts are on the host",
                "Keep some there with --experts-on-host, or leave it out.",
            )
        return Decided(None)
    _check(device, adapters)
    numbers = defaultdict[str, set[int]](set)
    for path in held:
        if (expert := expert_of(path)) is not None:
            numbers[expert[0]].add(expert[1])
    if not numbers:
        raise UnsupportedError(
            "--experts-on-host: this model stores no routed experts one by one",
            f"{_LEAVE_OUT}: all matrices are in the device's memory.",
        )
    if count > (most := max(map(len, numbers.values()))):
        raise OptionError(
            f"--experts-on-host {count}: a process has {most} routed experts of a layer",
            f"Use at most {most}: then the host has all of them.",
        )
    hosted = {parent: {*sorted(each)[:count]} for parent, each in numbers.items()}
    chosen = {
        path: matrix
        for path, matrix in held.items()
        if (expert := expert_of(path)) is not None and expert[1] in hosted[expert[0]]
    }
    nbytes = largest({path: matrix.nbytes for path, matrix in chosen.items()})
    layers = largest(dict.fromkeys(numbers, 1))
    cpu = device if device.kind == "cpu" else machine.cpu()
    room = math.inf if machine.elsewhere else cpu.total * CPU_PERCENT // 100
    if device.kind != "cpu":
        _check_memory(nbytes * options.processes_here, count, room, cpu)
    fetch = choose_fetching(options, device, chosen, nbytes, room)
    layouts = sorted({matrix.layout or dtype for matrix in chosen.values()})
    needs = [KernelNeed(op=GROUPED, layout=each, dtype=dtype, device=cpu) for each in layouts]
    needs += [KernelNeed(op=op, dtype=dtype, device=cpu) for op in OPS]
    kernels = kernels_for(catalog, needs, batch_invariant=options.batch_invariant)
    providers = {offer.item.name: offer.item for _, offer in kernels.offers}
    named = {use.layout: providers[use.name] for use in kernels.value if use.op == GROUPED}

    def provider_of(matrix: HeldMatrix) -> str:
        layout = matrix.layout or dtype
        need = evolve(needs[0], layout=layout, shape=matrix.shape)
        provider = named.get(layout)
        return TORCH if provider is None or provider.refuses(need) else provider.name

    fetched = fetch.value is not None and fetch.value.from_tokens == 1
    at_home = device.kind == "cpu" or fetched
    use = HostExpertsUse(
        count=count,
        of=most,
        modules=tuple(sorted({pattern_of(parent) for parent in numbers})),
        layers=layers,
        nbytes=nbytes,
        moved_bytes=0 if at_home else _moved(model, dtype) * layers,
        kernels=kernels.value,
        products=by_pattern({path: provider_of(each) for path, each in chosen.items()}),
        fetch=fetch.value,
    )
    notes = fetch.notes
    if device.kind == "cpu":
        notes += ("--experts-on-host saves no memory here: the device is the host",)
    elif not named and use.computes:
        hint = catalog.hint("kernels", "cpu")
        notes += (f"torch multiplies the experts on the host, slowly. {hint}".rstrip(),)
    return Decided(use, kernels.offers, kernels.refusals, notes)


def _moved(model: ModelConfig, dtype: DType) -> int:
    """Return the bytes of a token that a layer sends and gets back: its hidden state twice, and
    once the number (int64) and the weight (float32) of each of its experts."""
    hidden, picked = (getattr(model, name, 0) for name in ("hidden_size", "num_experts_per_tok"))
    return 2 * hidden * DTYPE_BYTES[dtype] + picked * 12


def _check(device: Device, adapters: AdapterRoom | None) -> None:
    if device.kind == "mps":
        raise UnsupportedError(
            f"--experts-on-host: {device} has the host's memory", f"{_LEAVE_OUT}: it saves none."
        )
    if device.kind != "cpu" and adapters is not None and "experts" in adapters.beside:
        raise UnsupportedError(
            "--experts-on-host cannot be combined with adapters that change routed experts yet",
            f"{_LEAVE_OUT}, or the adapters, or say --lora-targets auto.",
        )


def _check_memory(nbytes: int, count: int, limit: float, cpu: Device) -> None:
    """`nbytes` are those of all ranks of this machine."""
    if nbytes <= limit:
        return
    fit = int(count * limit // nbytes)
    raise OutOfMemoryError(
        f"--experts-on-host {count}: these experts take {host.format_bytes(nbytes)}, and "
        f"{host.format_bytes(int(limit))} of the host's {host.format_bytes(cpu.total)} may be used",
        f"Use at most {fit}, or fewer bits (--isq)." if fit else "Use fewer bits (--isq).",
    )
