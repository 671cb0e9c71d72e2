"""The paths that an app serves, with and without `/v1`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from attrs import frozen
from litestar import Litestar
from litestar.routes import HTTPRoute

_PREFIX = "/v1"


@frozen
class Routes:
    """The paths that an app serves."""

    patterns: tuple[tuple[re.Pattern[str], str, frozenset[str]], ...]
    """Each path as a regular expression and as it is written, with its methods."""

    @classmethod
    def of(cls, app: Litestar) -> Routes:
        return cls(
            tuple(
                (_pattern(route.path), route.path_format, frozenset(route.methods))
                for route in app.routes
                if isinstance(route, HTTPRoute)
            )
        )

    def methods(self, path: str) -> frozenset[str]:
        """Return the methods of a path; empty if there is no such path."""
        plain = path.rstrip("/") or "/"
        matching = (methods for regex, _, methods in self.patterns if regex.fullmatch(plain))
        return frozenset().union(*matching)

    def served(self, method: str, path: str) -> str:
        """Return the path that serves this one: itself, or with `/v1` added or removed."""
        bare = path.removeprefix(_PREFIX)
        other = bare if path.startswith(f"{_PREFIX}/") else f"{_PREFIX}{path}"
        here, there = self.methods(path), self.methods(other)
        return other if method not in here and (method in there or not here and there) else path

    def near(self, path: str) -> list[str]:
        """Return similar paths, the most similar first."""
        written = [each for _, each, _ in self.patterns]
        return get_close_matches(path, written, n=3, cutoff=0.6)


def _pattern(path: str) -> re.Pattern[str]:
    parts: Iterable[str] = re.split(r"(\{[^}]*\})", path.rstrip("/") or "/")
    return re.compile(
        "".join(
            (".+" if part.endswith(":path}") else "[^/]+")
            if part.startswith("{")
            else re.escape(part)
            for part in parts
        )
    )
