"""What a plan says of experts that stay in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from inferno.contracts import expert_of
from inferno.plan.fetch_use import FetchUse
from inferno.plan.kernel_use import KernelUse


@frozen(kw_only=True)
class HostExpertsUse:
    """Routed experts whose matrices stay in the host's memory, where a CPU's kernels compute them,
    or from where a device fetches them. Sizes are those of the largest rank."""

    count: int
    """How many of a layer's: the first ones that a rank has, or all if it has fewer."""
    of: int
    """How many of a layer's the rank has."""
    modules: tuple[str, ...]
    """Paths of layers' experts, with `*` for numbers: `model.layers.*.mlp.experts`."""
    layers: int
    nbytes: int
    """Of their matrices, once."""
    moved_bytes: int
    """Bytes that go to the host and back for each token, in all layers; 0: it is the device."""
    kernels: tuple[KernelUse, ...]
    """What the host computes them with. Torch computes the ops that are not listed."""
    products: Mapping[str, str]
    """As `Plan.products`, of their matrices, by paths with `*` for numbers."""
    fetch: FetchUse | None = None
    """Steps in which the device computes them; None: the host always does."""

    @property
    def computes(self) -> bool:
        """Whether the host computes any steps."""
        return self.fetch is None or self.fetch.from_tokens != 1

    @property
    def host_bytes(self) -> int:
        """Bytes of the host's memory: in its kernels' layouts, the device's, or both."""
        stays = self.fetch is None or (bool(self.fetch.measured) and self.fetch.chosen is None)
        return self.nbytes * (2 if self.computes and not stays else 1)

    def holds(self, path: str) -> bool:
        """Whether a module of a model without ranks is one of these experts or in one."""
        expert = expert_of(path)
        return expert is not None and expert[1] < self.count
