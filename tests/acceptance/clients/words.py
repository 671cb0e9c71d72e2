"""What the scripted model and its clients agree on, and how a client's flows are run. Imports
nothing: it runs in every client's own environment."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable

URL = os.environ.get("INFERNO_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("INFERNO_MODEL", "fake")

ASK_TOOLS = "How warm is it in Paris, and what is 19 + 23?"
"""Two tools, one after the other; then the answer."""
ASK_BOTH = "How warm are Paris and Rome?"
"""Two calls in one turn; then the answer."""
ASK_PERSON = "Extract the person: Ada Lovelace, 36."
ASK_THOUGHT = "Think: how many letters has cat?"

WARM, SUM = "21 degrees", "the sum is 42"
"""What the tools return."""

ANSWER = "It is 21 degrees in Paris, and 19 + 23 is 42."
BOTH = "It is 21 degrees in Paris and Rome."
PERSON = '{"name": "Ada Lovelace", "age": 36}'
THOUGHT, COUNT = "c, a, t: three.", "Cat has three letters."
HELLO = "Hello! I am a scripted model. Café, 東京, 🙂."


def get_weather(city: str) -> str:
    """The weather in a city."""
    assert city in ("Paris", "Rome"), city
    return WARM


def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    assert (a, b) == (19, 23), (a, b)
    return SUM


def equal(found: object, wanted: object) -> None:
    assert found == wanted, f"{found!r} is not {wanted!r}"


def run_flows(namespace: dict[str, object]) -> None:
    """Run the functions `flow_NAME` that the command line names, or all of them. Print a JSON line
    for each: its name, and its traceback or null."""
    flows: dict[str, Callable[[], object]] = {
        name.removeprefix("flow_"): each
        for name, each in namespace.items()
        if name.startswith("flow_") and callable(each)
    }
    for name in sys.argv[1:] or flows:
        error = None
        try:
            result = flows[name]()
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps({"flow": name, "error": error}), flush=True)
