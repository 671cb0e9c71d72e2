"""Reports what a device would wait for: values that go to Python or come from it, and shapes that
depend on values."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from inferno.nn.capture import TO_PYTHON, caller, refusal


class Lint(TorchDispatchMode):
    """Notes every operator, run inside this context, for which the host and a device would wait for
    each other. It sees operators of torch; on CPU tensors it cannot tell a copy to the host from
    another."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []
        """One sentence for each."""
        self.count = 0
        """Operators seen."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket not in TO_PYTHON:
            with self:  # a composite operator may hide one
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self.count += 1
        if (reason := refusal(func, args, kwargs)) is not None:
            self.found.append(f"{func} in {caller()} {reason}")
        return func(*args, **kwargs)
