"""What a plan says of the steps that are captured."""

from __future__ import annotations

from attrs import frozen

CUDA_GRAPHS = "CUDA graphs"
"""What captures steps on a CUDA device whose kernel providers do not."""


@frozen(kw_only=True)
class CaptureUse:
    """Which steps are captured, and by what."""

    name: str
    """The kernel provider, or `CUDA_GRAPHS`."""
    sizes: tuple[int, ...]
    """Numbers of sequences of one token each, ascending. A step is padded to the next, if any."""
    blocks: tuple[int, ...]
    """Numbers of blocks of a sequence, ascending. Tables are padded to the next."""
    ahead: bool = False
    """Whether all of them are captured before the first step, the largest first."""
    prompts: tuple[int, ...] = ()
    """Numbers of tokens, ascending, of steps in which sequences may have several. They are padded
    to the next, and captured ahead."""
    sequences: int = 0
    """Of every captured step with prompts: one more than such a step may have, for the padding. It
    is none of `prompts`, as with as many tokens each sequence would have one."""
