"""Devices: where a step computes, as a plugin sees it before torch is imported."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

DeviceKind = Literal["cpu", "cuda", "mps", "xpu"]
"""Kinds of devices, by torch's names."""


@frozen
class Device:
    """A device on which a model may run. Two values are equal if they describe the same device,
    whatever is free on it.

    Only `kind` and `index` are always known: `capability is None` also of a CUDA device whose
    driver does not tell.
    """

    kind: DeviceKind
    index: int = 0
    """Its number among the devices of its kind that this process may use, as torch counts them."""
    name: str = field(default="", kw_only=True)
    """Its model: "NVIDIA H200"."""
    capability: tuple[int, int] | None = field(default=None, kw_only=True)
    """CUDA's compute capability: (9, 0) for sm_90. None for other kinds."""
    total: int = field(default=0, kw_only=True)
    """Bytes of memory: on the CPU, what this process may use under its cgroup's limit."""
    free: int = field(default=0, kw_only=True, eq=False)
    """Bytes of memory that were free when the plan was made."""
    shared_memory: int | None = field(default=None, kw_only=True)
    """Most bytes of shared memory that one thread block can opt in to. None if unknown."""
    numa_node: int | None = field(default=None, kw_only=True)
    """The NUMA node to which it is attached. None for the CPU, or if the machine does not say."""

    @property
    def torch_name(self) -> str:
        """Torch's name for it: "cpu", "cuda:1"."""
        return self.kind if self.kind in ("cpu", "mps") else f"{self.kind}:{self.index}"

    def __str__(self) -> str:
        """For people: "cuda:1 (NVIDIA H200)"."""
        return f"{self.torch_name} ({self.name})" if self.name else self.torch_name
