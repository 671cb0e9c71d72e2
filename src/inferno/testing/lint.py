"""Reports operators for which the host and a device wait for each other: those that pass values to
or from Python, and those whose result's shape depends on values."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from inferno.device.staging import sent
from inferno.nn.capture import TO_PYTHON, caller, refusal


class Lint(TorchDispatchMode):
    """Context that records every operator for which the host and a device would wait for each
    other. It sees torch's operators only. On CPU tensors it cannot tell a copy to the host from
    another copy."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []
        """One sentence for each recorded operator."""
        self.count = 0
        """Operators seen."""
        self._composed = dict[Any, bool]()
        """Which operators are composite, of those seen: asking is most of the cost of a call."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket not in TO_PYTHON and self._composed.get(func, True):
            with self:  # a composite operator may hide one
                result = func.decompose(*args, **kwargs)
            self._composed[func] = result is not NotImplemented
            if self._composed[func]:
                return result
        self.count += 1
        if (reason := refusal(func, args, kwargs)) is not None and not _by_copy():
            self.found.append(f"{func} in {caller()} {reason}")
        return func(*args, **kwargs)


def _by_copy() -> bool:
    """Whether values of Python go to the device by a copy that nothing waits for (`sent`)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not sent.__code__:
        frame = frame.f_back
    return frame is not None
