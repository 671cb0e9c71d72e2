"""What every hook returns a list of."""

from __future__ import annotations

from typing import Protocol


class Declaration(Protocol):
    """A frozen declaration: what a plugin provides, under a name, by a version of its hook's
    contract."""

    @property
    def name(self) -> str: ...
    @property
    def api_version(self) -> int: ...
