"""What a hosted model needs, found by running its modelling code once on meta tensors
(`inspection`). Imports no torch.

Only the code knows: config classes do not say which layers attend, with what scale, window or
order. It needs torch, so a process that has not imported torch asks a subprocess.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from attrs import frozen

from inferno.contracts import AttentionSpec, CacheTensor, Divided, StateSpec
from inferno.errors import ERRORS, PluginError


@frozen(kw_only=True)
class HostedConfig:
    """A checkpoint's config, and the results of inspecting its model."""

    fields: Mapping[str, Any]
    """config.json, unchanged."""
    vocab_size: int
    max_position_embeddings: int
    attention: Mapping[str, AttentionSpec]
    """Spec of each call of attention, in execution order, by the path of its `nn.Attention`."""
    states: Mapping[str, StateSpec]
    """What modules keep of a sequence, by the path of its `nn.State`."""
    products: frozenset[str]
    """Paths of modules whose code writes attention out (`scores`)."""
    parameters: frozenset[str]
    """Every tensor that transformers would load, by its name in the model."""
    plain: frozenset[str]
    """Paths of modules whose code reads the matrix itself, which stays dense."""
    divides: Mapping[str, Divided]
    """What each matrix in inferno's layers is divided by among ranks, by path."""
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
            states={path: _state(tensors) for path, tensors in shown["states"].items()},
            products=frozenset(shown["products"]),
            parameters=frozenset(shown["parameters"]),
            plain=frozenset(shown["plain"]),
            divides=shown["divides"],
            unused_tensors=tuple(shown["unused_tensors"]),
        )

    def cache_specs(self) -> list[AttentionSpec | StateSpec]:
        return [*self.attention.values(), *self.states.values()]


def _state(tensors: Mapping[str, Any]) -> StateSpec:
    return StateSpec(
        tensors={name: CacheTensor(tuple(shape), dtype) for name, (shape, dtype) in tensors.items()}
    )


@lru_cache(maxsize=8)
def ask(function: str, question: str) -> Any:
    """Call `function` of this package ("module:name"), which maps a JSON string to plain data: here
    if torch is imported already, else in a subprocess. Raises its InfernoError."""
    if "torch" in sys.modules:
        return called(function, question)
    answer = _answering().ask(function, question)
    if "error" in answer:
        raise ERRORS[answer["error"]](answer["cause"], answer["remedy"])
    return answer["answer"]


@lru_cache(maxsize=1)
def _answering() -> Answering:
    return Answering()


class Answering:
    """A subprocess that answers one question after the other (`answer`): to import torch and
    transformers takes it seconds. It ends after some seconds without a question, and with this
    process."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")

    def ask(self, function: str, question: str) -> Any:
        """Raises PluginError if it ends without an answer."""
        line = json.dumps([function, question]) + "\n"
        with self._turn:
            if self._process is None or (answer := self._said(self._process, line)) is None:
                self._process = self._started()
                answer = self._said(self._process, line)
            if answer is not None:
                return json.loads(answer)
            self._process.wait()
            self._process = None
            self._stderr.seek(0)
            detail = self._stderr.read()
        last = detail.strip().splitlines()[-1:] or ["no error output"]
        raise PluginError(
            f"transformers could not be asked about the model: {last[0]}",
            "Report this as a bug.",
            detail=detail,
        )

    def _started(self) -> subprocess.Popen[str]:
        self._stderr.seek(0)
        self._stderr.truncate()
        return subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.answer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def _said(self, process: subprocess.Popen[str], line: str) -> str | None:
        """Return the answer; None from a process that has ended."""
        assert process.stdin is not None and process.stdout is not None, "they are pipes"
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            return None
        return process.stdout.readline() or None


def called(function: str, question: str) -> Any:
    """Import and call `function` of this package."""
    module, name = function.split(":")
    return getattr(import_module(f"{__package__}.{module}"), name)(question)
