"""What a hosted model specs, found by running its modelling code once without numbers
(`inspection`). Imports no torch.

Only the code itself knows: config classes say neither which layers attend, nor their scale, window
or order. It specs torch, so a process that has not imported it asks another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from attrs import frozen

from inferno.contracts import AttentionSpec
from inferno.errors import ERRORS, PluginError


@frozen(kw_only=True)
class HostedConfig:
    """A checkpoint's config, and what running its model showed."""

    fields: Mapping[str, Any]
    """config.json as it stands."""
    vocab_size: int
    max_position_embeddings: int
    attention: Mapping[str, AttentionSpec]
    """Path of each module that attends, in the order they do, and its spec."""
    parameters: frozenset[str]
    """Every tensor that transformers would load, by its name in the model."""
    plain: frozenset[str]
    """Paths of modules whose code reads its matrix itself: they hold a dense one."""
    unused_tensors: tuple[str, ...]
    """Matrices that are tied to another."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> HostedConfig:
        """Raises UnsupportedError for a model that cannot be hosted, CheckpointError for a config
        transformers refuses."""
        shown = ask("inspection:inspect", json.dumps(dict(config), sort_keys=True))
        specs = {path: AttentionSpec(**spec) for path, spec in shown["attention"].items()}
        return cls(
            fields=dict(config),
            vocab_size=shown["vocab_size"],
            max_position_embeddings=shown["max_position_embeddings"],
            attention=specs,
            parameters=frozenset(shown["parameters"]),
            plain=frozenset(shown["plain"]),
            unused_tensors=tuple(shown["unused_tensors"]),
        )

    def cache_specs(self) -> list[AttentionSpec]:
        return list(self.attention.values())


@lru_cache(maxsize=8)
def ask(function: str, question: str) -> Any:
    """What `function` of this package ("module:name"), from JSON text to plain data, answers:
    called here where torch is imported already, else in another process. Raises the InfernoError
    that it raises."""
    if "torch" in sys.modules:
        return called(function, question)
    done = subprocess.run(
        [sys.executable, "-P", "-m", f"{__package__}.answer", function],
        input=question,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise PluginError(
            f"transformers could not be asked about the model: {last[0]}",
            "Report this.",
            detail=done.stderr,
        )
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise ERRORS[answer["error"]](answer["cause"], answer["remedy"])
    return answer["answer"]


def called(function: str, question: str) -> Any:
    """What `function` of this package, imported now, answers."""
    module, name = function.split(":")
    return getattr(import_module(f"{__package__}.{module}"), name)(question)
