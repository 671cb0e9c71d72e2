"""Imports torch without the parts that only its compiler and exporter use, until they are needed.

`import torch` also imports `torch.export` and registers what operators do on the meta device in
Python. Both together are a third of its time, and computing on a CPU needs neither. While
`deferring`, their modules stay empty. All are loaded, as torch would have, as soon as

- one of their attributes is used,
- any module of torch is imported that `import torch` had not imported: `torch._dynamo`,
  `torch._decomp`, `torch.testing._internal`,
- or `complete` is called, as it is 1.5 s after a model was loaded by `inferno.LLM`.

Until then one thing differs, loudly: an operator that has its meta kernel in Python raises
NotImplementedError on meta tensors. And a thread that needs them while another one loads them may
wait for as long as `_WAIT_SECONDS`, if the other needs a module that this one is importing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from attrs import define, field

DEFERRED = ("torch.export", "torch._meta_registrations")
"""In the order in which `import torch` imports them."""
_NEEDS_NONE = frozenset({"torch.utils._device"})
"""Modules that are imported while a model is loaded and runs, and use nothing that is deferred."""
_LATER_SECONDS = 1.5
"""The first token comes first."""
_WAIT_SECONDS = 10.0
"""How long a thread waits for another one to load them. It may itself hold the lock of an import
that the other needs: then both go on."""


@contextmanager
def deferring(wanted: bool = True) -> Iterator[None]:
    """Context in which torch is imported. Without effect if torch was imported before, or nothing
    is `wanted`."""
    if not wanted or "torch" in sys.modules:
        yield
        return
    sys.meta_path.insert(0, _FINDER)
    try:
        yield
    except BaseException:
        complete()
        raise


def complete() -> bool:
    """Load what was deferred. Returns whether anything was."""
    return _FINDER.complete()


def complete_later() -> None:
    """Load it in a thread, some time after a model was loaded in a process whose owner may use
    torch as well."""
    if deferred():
        thread = threading.Timer(_LATER_SECONDS, complete)
        thread.name, thread.daemon = "inferno rest of torch", True
        thread.start()


def deferred() -> list[str]:
    """Return the modules that are not loaded yet."""
    return [name for name in DEFERRED if type(sys.modules.get(name)) is _Deferred]


class _Deferred(ModuleType):
    """A module that loads when an attribute is used that it lacks."""

    def __getattr__(self, name: str) -> Any:
        # Python itself asks every module for such names, as `inspect` does for `__wrapped__`.
        if not (name.startswith("__") and name != "__all__") and not _FINDER.is_loading:
            if _importing_torch():  # torch uses it itself: only this, in torch's own order
                _FINDER.load([self.__name__])
            else:
                complete()
            if name in self.__dict__ or type(self) is not _Deferred:
                return getattr(self, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> Sequence[str]:
        complete()
        return dir(self) if type(self) is not _Deferred else sorted(self.__dict__)


class _Later(Loader):
    """Makes an empty module, which is filled with the real loader."""

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


@define(eq=False)
class _Finder:
    """Finds the deferred modules, and sees the first import of any other module of torch."""

    _lock: Any = field(factory=threading.Lock)
    _loader: int | None = None
    """The thread that loads the deferred modules now."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("torch.") or self.is_loading:
            return None
        if name in DEFERRED:
            found = PathFinder.find_spec(name, path, target)
            if found is not None and found.loader is not None:
                found.loader = _Later(found.loader)
            return found
        if name in _NEEDS_NONE or _importing_torch() or not deferred():
            return None
        self.complete()
        if (module := sys.modules.get(name)) is None:
            return None
        # It was loaded just now. Python takes the spec of the module, whatever is returned here.
        module.__spec__ = ModuleSpec(name, _Loaded(module))
        return module.__spec__

    @property
    def is_loading(self) -> bool:
        """Whether this thread loads the deferred modules: then they are modules like others."""
        return self._loader == threading.get_ident()

    def complete(self) -> bool:
        if self.is_loading:
            return False
        waiting = deferred()
        self.load(waiting)
        if not deferred() and "torch" in sys.modules and not _importing_torch():
            with suppress(ValueError):  # another thread did
                sys.meta_path.remove(self)
        return bool(waiting)

    def load(self, names: Sequence[str]) -> None:
        """Fill these modules, unless another thread has."""
        if not self._lock.acquire(timeout=_WAIT_SECONDS):
            return
        self._loader = threading.get_ident()
        try:
            for name in names:
                if type(module := sys.modules[name]) is _Deferred:
                    _fill(module)
        finally:
            self._loader = None
            self._lock.release()


_FINDER = _Finder()


def _importing_torch() -> bool:
    """Whether `import torch` has not ended."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return spec is None or getattr(spec, "_initializing", False)


def _fill(module: ModuleType) -> None:
    spec = module.__spec__
    assert spec is not None and isinstance(spec.loader, _Later)
    later = spec.loader
    spec.loader = module.__loader__ = later.real
    try:
        later.real.exec_module(module)
    except BaseException:
        spec.loader = module.__loader__ = later
        raise
    module.__class__ = ModuleType
