"""Declarations of the version before, as the kernel reads them: in the current one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from inferno import contracts
from inferno.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from inferno.contracts import CachePolicy, HeldMatrix, PrefixCache, QuantScheme, StoredMatrix
    from inferno.nn.weight import Weight


def current(item: Any) -> Any:
    """Return a declaration in its contract's current version. Raises PluginError if it lacks what
    its own version requires."""
    if getattr(item, "owns", None) is not None and isinstance(
        item, contracts.QuantScheme
    ):  # stated or not, it is version 1
        return _scheme(item)
    # Else the list of commands would import the contract to ask.
    if type(item).__name__ == "CachePolicy" and isinstance(item, contracts.CachePolicy):
        return _policy(item)
    return item


def _policy(given: CachePolicy) -> CachePolicy:
    """Stated or not, a policy is of version 1 if its cache cannot drop blocks."""

    def build(num_blocks: int) -> PrefixCache | None:
        cache = given.build(num_blocks)
        return cache if cache is None or hasattr(cache, "drop") else _Version1(cache)

    return evolve(given, build=build)


@frozen(eq=False)
class _Version1:
    """A prefix cache of version 1. It drops nothing: dropped blocks stay until they are evicted."""

    cache: PrefixCache

    @property
    def num_idle(self) -> int:
        return self.cache.num_idle

    def match(self, keys: Sequence[bytes]) -> list[int]:
        return self.cache.match(keys)

    def insert(self, key: bytes, block_id: int, parent: bytes | None = None) -> int:
        return self.cache.insert(key, block_id)

    def contains(self, block_id: int) -> bool:
        return self.cache.contains(block_id)

    def touch(self, block_id: int) -> None:
        self.cache.touch(block_id)

    def release(self, block_id: int) -> None:
        self.cache.release(block_id)

    def evict(self, count: int) -> list[int]:
        return self.cache.evict(count)

    def drop(self, block_ids: Sequence[int]) -> list[int]:
        return []

    def clear(self) -> list[int]:
        return self.cache.clear()


def _scheme(old: QuantScheme) -> QuantScheme:
    owns, nbytes, load, layout = old.owns, old.nbytes, old.load, old.layout
    if owns is None or nbytes is None:
        raise PluginError(
            f"the quantization scheme {old.name!r} has `owns`, but no `nbytes`",
            "Version 1 of the contract has both, version 2 has `refuses` and `holds`.",
        )

    def refuses(stored: StoredMatrix) -> str | None:
        if owns(stored.parts, stored.quant_config):
            return None
        return f"it does not read matrices stored as {', '.join(sorted(stored.parts))}"

    def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
        return contracts.HeldMatrix(layout=layout, shape=None, nbytes=nbytes(stored.parts, dtype))

    def load_parts(stored: StoredMatrix, tensors: Mapping[str, Tensor], *, dtype: str) -> Weight:
        weight: Weight = load(tensors, quant_config=stored.quant_config, dtype=dtype)
        return weight

    return evolve(
        old, refuses=refuses, holds=holds, load=load_parts, owns=None, nbytes=None, api_version=2
    )
