"""Which requests run, by the names that their clients gave them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import Request

Running = dict[str, Callable[[], None]]
"""By `rid`, what ends the request."""


def running_of(request: Request[Any, Any, Any]) -> Running:
    """Return the server's."""
    state = request.app.state
    if "sglang_running" not in state:
        state["sglang_running"] = {}
    running: Running = state["sglang_running"]
    return running
