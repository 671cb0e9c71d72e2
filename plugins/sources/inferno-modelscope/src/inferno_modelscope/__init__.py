"""Models of ModelScope. Reference `modelscope:OWNER/NAME`, `modelscope:OWNER/NAME/FILE`."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Source

PREFIX = "modelscope:"


def is_modelscope(ref: str) -> bool:
    return ref.startswith(PREFIX)


@hookimpl
def inferno_sources() -> list[Source]:
    return [
        Source(
            name="modelscope",
            describe="a ModelScope id: modelscope:owner/name, modelscope:owner/name@revision, or "
            "one file of it: modelscope:owner/name/file.gguf",
            matches=is_modelscope,
            fetch="inferno_modelscope.models:fetch",
            list="inferno_modelscope.models:references",
            priority=30,  # above local paths: a folder of that name is ./modelscope:...
        )
    ]
