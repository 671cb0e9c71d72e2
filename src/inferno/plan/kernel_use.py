"""What a plan says of the ops that kernel providers compute."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class KernelUse:
    """An op that a kernel provider computes."""

    op: str
    layout: str
    """Layout of the matrices, for `linear` and `grouped`."""
    name: str
    distribution: str
    level: str = ""
    """Which of its builds the provider runs, such as an instruction set."""
