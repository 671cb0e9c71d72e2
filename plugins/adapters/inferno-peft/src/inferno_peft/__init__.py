"""LoRA adapters as PEFT stores them, for inferno."""

from __future__ import annotations

from pathlib import Path

from inferno import hookimpl
from inferno.contracts import AdapterFormat

CONFIG = "adapter_config.json"


def matches(path: Path) -> bool:
    """Whether `path` is a folder with PEFT's config."""
    return (path / CONFIG).is_file()


@hookimpl
def inferno_adapter_formats() -> list[AdapterFormat]:
    return [AdapterFormat(name="peft", matches=matches, open="inferno_peft.adapter:open_adapter")]
