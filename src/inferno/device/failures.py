"""Turns torch's errors about a device into errors that say what to do next.

torch raises RuntimeError for most of them, so they are recognized by their messages. An unknown
error stays as it is.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from types import TracebackType

import torch
from attrs import frozen

from inferno.contracts import Device
from inferno.errors import DeviceError, InfernoError, OutOfMemoryError

REMEDIES = {
    "load the weights": "Choose a smaller or a quantized model, or stop what else uses the device.",
    "allocate its cache": "Lower --memory, or stop what else uses the device.",
    "compute a step": "Lower --max-num-batched-tokens, --max-num-seqs or --memory, or stop what "
    "else uses the device.",
    "capture its decode steps": "Lower --max-num-seqs or --memory, or stop what else uses the "
    "device.",
}
"""Remedies for a lack of memory, by what the memory was for."""

REMEDY = (
    "Lower --max-num-batched-tokens or --max-num-seqs, choose a smaller or a quantized model, or "
    "stop what else uses the device."
)


@frozen
class device_errors:  # named like `contextlib.suppress`
    """Context in which torch's errors about the device become an OutOfMemoryError or a DeviceError
    with a remedy. `purpose` says what the memory is for: "load the weights". A class, as every step
    enters it: `contextmanager` makes a generator each time."""

    device: Device
    purpose: str = ""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, RuntimeError | AssertionError | MemoryError | OSError):
            return
        if (failure := told(error, self.device, self.purpose)) is not None:
            raise failure from error


def told(error: BaseException, device: Device, purpose: str = "") -> InfernoError | None:
    """Translate an error of torch for the user. None if it is not about the device."""
    message = str(error)
    if _is_lack_of_memory(error, message):
        # The sentences after the first two are about the allocator's settings.
        why = ". ".join(re.split(r"\.\s", message)[:2]).partition("\n")[0]
        room = f" to {purpose}" if purpose else ""
        return OutOfMemoryError(
            f"{device} has too little free memory{room}" + (f": {why}" if why else ""),
            REMEDIES.get(purpose, REMEDY),
        )
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, message, re.IGNORECASE):
            cause, remedy = meaning(device)
            return DeviceError(cause, remedy)
    return None


def no_kernels(device: Device) -> tuple[str, str]:
    """Return cause and remedy if a library was not built for the device's capability."""
    major, minor = device.capability or (0, 0)
    chip = f" (sm_{major}{minor})" if device.capability else ""
    built = ", ".join(torch.cuda.get_arch_list())
    holds = f": torch {torch.__version__} has kernels for {built}" if built else ""
    return (
        f"a library has no kernels for {device}{chip}{holds}",
        "Install a build of torch for this GPU (https://pytorch.org), choose "
        "--attention-backend torch, or start with --device cpu.",
    )


def _is_lack_of_memory(error: BaseException, message: str) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or bool(
        re.search(r"CUDA error: out of memory|_STATUS_ALLOC_FAILED|can't allocate memory", message)
    )


def _no_driver(device: Device) -> tuple[str, str]:
    return (
        f"torch finds no NVIDIA driver for {device}",
        "Install NVIDIA's driver; start a container with its GPUs (docker run --gpus all); or "
        "start with --device cpu.",
    )


def _old_driver(device: Device) -> tuple[str, str]:
    return (
        f"the NVIDIA driver of {device} is too old for torch {torch.__version__}, which is built "
        f"for CUDA {torch.version.cuda}",
        "Update the driver, install a build of torch for an older CUDA (https://pytorch.org), or "
        "start with --device cpu.",
    )


def _no_cuda(device: Device) -> tuple[str, str]:
    return (
        f"the plan is for {device}, but torch {torch.__version__} is built without CUDA",
        "Install a build of torch for CUDA (https://pytorch.org), or start with --device cpu.",
    )


def _mismatch(device: Device) -> tuple[str, str]:
    return (
        f"the NVIDIA driver of {device} and its libraries do not fit together",
        "Restart the machine if the driver was updated; in a container, use an image for a CUDA "
        "that the driver supports.",
    )


def _unusable(device: Device) -> tuple[str, str]:
    return (
        f"CUDA cannot start on {device}",
        "See whether `nvidia-smi` works. After a suspension, `sudo modprobe -r nvidia_uvm; sudo "
        "modprobe nvidia_uvm` helps; else restart the machine, or start with --device cpu.",
    )


def _busy(device: Device) -> tuple[str, str]:
    return (
        f"{device} is busy: another process uses it exclusively, or its compute mode forbids CUDA",
        "Stop that process (`nvidia-smi` lists it), or name another device with --device.",
    )


def _gone(device: Device) -> tuple[str, str]:
    return (
        f"torch finds no device {device.torch_name}",
        "Look at CUDA_VISIBLE_DEVICES and at `nvidia-smi -L`, and name a device with --device.",
    )


_MEANINGS: tuple[tuple[str, Callable[[Device], tuple[str, str]]], ...] = (
    (r"no kernel image is available|PTX was compiled with an unsupported toolchain", no_kernels),
    (r"found no NVIDIA driver", _no_driver),
    (r"driver on your system is too old|driver version is insufficient", _old_driver),
    (r"not compiled with CUDA enabled", _no_cuda),
    (r"unsupported display driver|forward compatibility was attempted", _mismatch),
    (r"devices? is/are busy|devices are busy or unavailable", _busy),
    (r"no CUDA GPUs are available|no CUDA-capable device|invalid device ordinal", _gone),
    (r"CUDA unknown error|CUDA driver initialization failed|initialization error", _unusable),
)
"""Patterns of torch's and CUDA's messages, with functions that return cause and remedy."""
