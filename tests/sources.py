"""What the tests of all source files read of each, once."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path


@cache
def imports_in(path: Path) -> tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]:
    """Return the imports of a file, in functions too, and whether each is for types alone: under
    `if TYPE_CHECKING`."""
    return tuple(_imports(ast.parse(path.read_text(encoding="utf-8")).body, False))


def _imports(
    statements: Iterable[ast.AST], for_types: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for each in statements:
        if isinstance(each, ast.Import | ast.ImportFrom):
            yield each, for_types
            continue
        guards = isinstance(each, ast.If) and "TYPE_CHECKING" in ast.unparse(each.test)
        yield from _imports(getattr(each, "body", ()), for_types or guards)
        for rest in ("orelse", "finalbody", "handlers", "cases"):
            yield from _imports(getattr(each, rest, ()), for_types)
