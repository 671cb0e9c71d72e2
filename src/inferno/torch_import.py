"""Imports torch without the parts that only its compiler and exporter use, until they are needed.

`import torch` also imports `torch.export` and registers what operators do on the meta device in
Python. Both together are a third of its time, and computing on a CPU needs neither. While
`deferring`, their modules stay empty. All are loaded, as torch would have, as soon as

- one of their attributes is used,
- any module of torch is imported that `import torch` had not imported: `torch._dynamo`,
  `torch._decomp`, `torch.testing._internal`,
- or `complete` is called, which the owner of an engine does soon after the model is loaded.

Until then one thing differs, loudly: an operator that has its meta kernel in Python raises
NotImplementedError on meta tensors.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

DEFERRED = ("torch.export", "torch._meta_registrations")
"""In the order in which `import torch` imports them."""
_COMPLETE_AFTER = 1.5
"""Seconds after loading: the first token comes first."""


@contextmanager
def deferring(wanted: bool = True) -> Iterator[None]:
    """Context in which torch is imported and a model loaded. Without effect if torch was imported
    before, or nothing is `wanted`. Some time after it, a thread calls `complete`."""
    if not wanted or "torch" in sys.modules:
        yield
        return
    sys.meta_path.insert(0, _FINDER)
    try:
        yield
    except BaseException:
        complete()
        raise
    threading.Thread(target=_complete_later, name="inferno rest of torch", daemon=True).start()


def complete() -> bool:
    """Load what was deferred. Returns whether anything was."""
    waiting = deferred()
    for name in waiting:
        _load(sys.modules[name])
    if _FINDER in sys.meta_path and "torch" in sys.modules:
        with suppress(ValueError):  # another thread did
            sys.meta_path.remove(_FINDER)
    return bool(waiting)


def deferred() -> list[str]:
    """Return the modules that are not loaded yet."""
    return [name for name in DEFERRED if type(sys.modules.get(name)) is _Deferred]


def _complete_later() -> None:
    time.sleep(_COMPLETE_AFTER)
    complete()


class _Deferred(ModuleType):
    """A module that loads when an attribute is used that it lacks."""

    def __getattr__(self, name: str) -> Any:
        # Python itself asks every module for such names, as `inspect` does for `__wrapped__`.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        complete()
        return getattr(self, name)

    def __dir__(self) -> Sequence[str]:
        complete()
        return dir(self)


class _Later(Loader):
    """Makes an empty module, which `_load` fills with the real loader."""

    def __init__(self, real: Loader) -> None:
        self.real = real

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _Deferred


class _Loaded(Loader):
    """Gives a module that is loaded already."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Finder:
    """Finds the deferred modules, and sees the first import of any other module of torch."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("torch."):
            return None
        if name in DEFERRED:
            found = PathFinder.find_spec(name, path, target)
            if found is not None and found.loader is not None:
                found.loader = _Later(found.loader)
            return found
        if _importing_torch() or not deferred():
            return None
        complete()
        module = sys.modules.get(name)  # it may have been loaded just now: not twice
        return None if module is None else ModuleSpec(name, _Loaded(module))


_FINDER = _Finder()


def _importing_torch() -> bool:
    """Whether `import torch` has not ended."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return spec is None or getattr(spec, "_initializing", False)


def _load(module: ModuleType) -> None:
    """Fill a deferred module, under the lock of its import: that lock sees deadlocks with other
    threads that import."""
    bootstrap: Any = importlib._bootstrap  # type: ignore[attr-defined]
    try:
        with bootstrap._ModuleLockManager(module.__name__):
            if type(module) is not _Deferred:
                return
            spec = module.__spec__
            assert spec is not None and isinstance(spec.loader, _Later)
            later = spec.loader
            spec.loader = module.__loader__ = later.real
            module.__class__ = ModuleType
            try:
                later.real.exec_module(module)
            except BaseException:
                spec.loader = module.__loader__ = later
                module.__class__ = _Deferred
                raise
    except bootstrap._DeadlockError:  # the other thread loads it
        return
