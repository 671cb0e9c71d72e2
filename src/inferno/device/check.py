"""Compares a plan's device with what torch finds, before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from inferno.contracts import Device
from inferno.device.failures import device_errors, no_kernels
from inferno.errors import DeviceError


def check_device(device: Device) -> None:
    """Make the device the current one of this thread. Raises DeviceError if torch does not find it,
    finds another one under its number, or has no kernels for it."""
    if device.kind == "cpu":
        return
    count = torch.get_device_module(device.kind).device_count()
    if device.kind == "cuda" and torch.version.cuda and not count:
        with device_errors(device):
            torch.cuda.init()  # its error says why there is none
    if device.index >= count:
        raise DeviceError(
            f"the plan is for {device}, but torch {torch.__version__} finds no such device",
            "Install a build of torch for it, or start with --device cpu.",
        )
    if device.kind != "cuda":
        return
    properties = torch.cuda.get_device_properties(device.index)
    # The driver and torch may name a part of a GPU differently.
    same_name = properties.name == device.name or "MIG" in f"{properties.name} {device.name}"
    if not same_name or (properties.major, properties.minor) != device.capability:
        raise DeviceError(
            f"the plan is for {device}, but torch finds a {properties.name} under that number",
            "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, so that all programs count alike.",
        )
    if not runs_on((properties.major, properties.minor), torch.cuda.get_arch_list()):
        raise DeviceError(*no_kernels(device))
    with device_errors(device):
        # Kernels that are not torch's, and the allocator, work on the current device.
        torch.cuda.set_device(device.index)


def runs_on(capability: tuple[int, int], built: Iterable[str]) -> bool:
    """Whether code for one of `built` ("sm_80", "sm_90a", "compute_120") runs on a chip. Machine
    code runs on later chips of the same major version; `compute` code is compiled for any later
    chip. True if no entry is known."""
    matches = [re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name) for name in built]
    known = [m for m in matches if m is not None]
    if not known:
        return True
    for match in known:
        kind, version, only = match[1], (int(match[2]), int(match[3])), match[4]
        if (
            version == capability
            or not only
            and version <= capability
            and (kind == "compute" or version[0] == capability[0])
        ):
            return True
    return False
