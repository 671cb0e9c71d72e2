"""Decides where a model computes, and in which type."""

from __future__ import annotations

from collections import Counter

from attrs import evolve, frozen

from inferno.contracts import Checkpoint, Device, DType
from inferno.plan.decided import Decided
from inferno.plan.devices import Machine, find_devices
from inferno.plan.dtypes import compute_dtype, on_device
from inferno.plan.options import Options


@frozen(kw_only=True)
class Compute:
    """Where the model computes, and in which type."""

    device: Device
    """The first process's: the others' are alike, and none of them has less memory free."""
    devices: tuple[Device, ...]
    """Of each process on this machine: of the ranks of one engine after those of another."""
    dtype: Decided[DType]

    @property
    def sharing(self) -> int:
        """How many processes share a device's memory, at most."""
        return max(Counter(each.torch_name for each in self.devices).values())


def choose_compute(
    options: Options, checkpoint: Checkpoint, machine: Machine | None = None
) -> Compute:
    """Return the devices of this machine's processes, and the compute dtype. Raises DeviceError,
    OptionError."""
    devices = find_devices(options.device, options.processes_here, machine)
    device = evolve(devices[0], free=min(each.free for each in devices))
    wanted = compute_dtype(options.dtype, checkpoint)
    dtype = on_device(wanted, options.dtype, device)
    return Compute(device=device, devices=devices, dtype=dtype)
