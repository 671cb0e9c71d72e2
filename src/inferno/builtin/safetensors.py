"""Hugging Face folders: config.json, *.safetensors and the tokenizer's files. Headers are read and
checked without torch.

The format: 8 bytes little-endian header length, a JSON object name -> {dtype, shape, data_offsets},
then the data (https://github.com/huggingface/safetensors). We check it ourselves, because the plan
reads headers only and must detect a damaged file: offsets inside the file, sizes that match shapes,
no overlaps, no allocation sized by an unchecked header.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from mmap import ALLOCATIONGRANULARITY, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from inferno.configs.files import MAX_CONFIG, check_regular, contents, opened
from inferno.contracts import DTYPE_BYTES, Architecture, TensorInfo, TextAssets
from inferno.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

MAX_HEADER = 100_000_000
"""In bytes: the reference implementation's limit."""

MAX_ARRAYS = 2**30
"""Bytes of the weights beside the model's, which are read into memory."""

_READ = (".json", ".safetensors", ".jinja", ".model", ".txt", ".tiktoken", ".jsonl")
"""Endings of files that are read."""

DTYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}

_FOLDER = re.compile(r"\w[\w.-]*")
"""A module's folder in modules.json: never outside of the checkpoint."""

QUANT_CONFIGS = ("quant_config.json", "quantize_config.json")
"""Files in which quantizers describe what `quantization_config` of config.json now does."""

DAMAGED = "The file is damaged or incomplete: download it again."


def matches(path: Path) -> bool:
    """Whether `path` is a folder with safetensors files, or one such file."""
    if path.is_file():
        return path.suffix == ".safetensors"
    return path.is_dir() and any(path.glob("*.safetensors"))


@frozen
class _Stored:
    file: Path
    info: TensorInfo
    offset: int
    """Offset of its first byte in the file."""


@define
class SafetensorsCheckpoint:
    """See `contracts.Checkpoint`."""

    folder: Path
    config: Mapping[str, Any]
    stored: Mapping[str, _Stored]

    @classmethod
    def open(cls, path: Path, architectures: Sequence[Architecture] = ()) -> SafetensorsCheckpoint:
        folder = path if path.is_dir() else path.parent
        _check_files(folder)
        config = _read_json(folder / "config.json")
        if config is None:
            raise CheckpointError(
                f"{folder} has no config.json", "Put it next to the safetensors files."
            )
        for name in QUANT_CONFIGS if "quantization_config" not in config else ():
            if (quant_config := _read_json(folder / name)) is not None:
                config = {**config, "quantization_config": quant_config}
        return cls(folder, config, _stored_in(path))

    @classmethod
    def of_tensors(cls, path: Path) -> SafetensorsCheckpoint:
        """Open the tensors of a file or a folder alone: it needs no config.json. Raises
        CheckpointError."""
        return cls(path if path.is_dir() else path.parent, {}, _stored_in(path))

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: s.info for name, s in self.stored.items()}

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(sorted({stored.file for stored in self.stored.values()}))

    def read(self, name: str) -> Tensor:
        """Return a view of the mapped file. Each tensor has its own mapping, which is unmapped with
        it."""
        import torch

        stored = self.stored[name]
        info, dtype = stored.info, getattr(torch, stored.info.dtype)
        if not info.nbytes:
            return torch.empty(info.shape, dtype=dtype)
        before = stored.offset % ALLOCATIONGRANULARITY
        try:
            with stored.file.open("rb") as stream:
                pages = mmap(
                    stream.fileno(),
                    before + info.nbytes,
                    flags=MAP_PRIVATE,
                    prot=PROT_READ | PROT_WRITE,
                    offset=stored.offset - before,
                )
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{stored.file.name}: {error}", DAMAGED) from error
        raw = torch.frombuffer(pages, dtype=torch.uint8, count=info.nbytes, offset=before)
        if before % dtype.itemsize:  # the format allows unaligned tensors, torch cannot view them
            raw = raw.clone()
        return raw.view(dtype).view(info.shape)

    def peek(self, name: str) -> bytes:
        """Return a tensor's bytes, without torch."""
        stored = self.stored[name]
        try:
            with stored.file.open("rb") as stream:
                stream.seek(stored.offset)
                return stream.read(stored.info.nbytes)
        except OSError as error:
            raise CheckpointError(f"{stored.file.name}: {error}", DAMAGED) from error

    def close(self) -> None:
        """Tensors that were read stay valid."""

    def text(self) -> TextAssets:
        tokenizer_config = _read_json(self.folder / "tokenizer_config.json") or {}
        tokenizer = self.folder / "tokenizer.json"
        slow = any(
            (self.folder / name).exists()
            for name in ("tokenizer.model", "vocab.json", "tekken.json")
        )
        return TextAssets(
            tokenizer_json=contents(tokenizer) if tokenizer.exists() else None,
            tokenizer_dir=str(self.folder) if slow else None,
            tokenizer_config=tokenizer_config,
            chat_template=self._chat_template(tokenizer_config),
            generation_config=_read_json(self.folder / "generation_config.json") or {},
            image_processor=_processor(self.folder, "image_processor"),
            audio_processor=_processor(self.folder, "feature_extractor"),
            modules=_modules(self.folder),
            **_prompts(self.folder),
            max_seq_length=_max_seq_length(self.folder),
        )

    def _chat_template(self, tokenizer_config: Mapping[str, Any]) -> str | None:
        for name in ("chat_template.jinja", "chat_template.json"):
            file = self.folder / name
            if file.exists():
                return (
                    _read_text(file)
                    if file.suffix == ".jinja"
                    else (_read_json(file) or {}).get("chat_template")
                )
        return tokenizer_config.get("chat_template")


def _processor(folder: Path, name: str) -> Mapping[str, Any]:
    """Return how images or audio are prepared, from the older file, which has both, or the newer
    one, which has them under a name each."""
    whole = _read_json(folder / "processor_config.json") or {}
    inner = whole.get(name)
    return _read_json(folder / "preprocessor_config.json") or (
        inner if isinstance(inner, dict) else {}
    )


def _stored_in(path: Path) -> dict[str, _Stored]:
    stored: dict[str, _Stored] = {}
    for file in _files(path):
        for name, entry in read_header(file).items():
            if name in stored:
                raise CheckpointError(
                    f"{name} is in both {stored[name].file.name} and {file.name}", DAMAGED
                )
            stored[name] = entry
    return stored


def _files(path: Path) -> list[Path]:
    """Return the checkpoint's files: the given one, those in the index, or all in the folder."""
    if path.is_file():
        return [path]
    indexes = sorted(path.glob("*.safetensors.index.json"))
    if not indexes:
        return sorted(path.glob("*.safetensors"))
    weight_map = (_read_json(indexes[0]) or {}).get("weight_map")
    if not isinstance(weight_map, Mapping) or not all(
        isinstance(v, str) for v in weight_map.values()
    ):
        raise CheckpointError(f"{indexes[0].name} has no weight_map of file names", DAMAGED)
    files = [path / name for name in sorted(set(weight_map.values()))]
    for file in files:
        if file.parent != path:
            raise CheckpointError(
                f"{indexes[0].name} names {file.name!r} outside its folder", DAMAGED
            )
        if not file.is_file():
            raise CheckpointError(f"{file.name} is missing; {indexes[0].name} names it", DAMAGED)
    return files


def read_header(file: Path) -> dict[str, _Stored]:
    """Read the tensors of one file. Raises CheckpointError unless sizes, shapes and offsets agree
    with each other and the file."""
    with opened(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise CheckpointError(
                f"{file.name}: header of {length} bytes in a file of {size}", DAMAGED
            )
        try:
            header = json.loads(stream.read(length), object_pairs_hook=_unique)
        except _NamedTwiceError as error:
            raise CheckpointError(f"{file.name}: its header has {error} twice", DAMAGED) from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{file.name}: its header is not JSON", DAMAGED) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file.name}: its header is not an object", DAMAGED)
    header.pop("__metadata__", None)
    tensors, ends = {}, []
    for name, entry in header.items():
        info, begin, end = _entry(file, name, entry)
        tensors[name] = _Stored(file, info, 8 + length + begin)
        ends.append((begin, end, name))
    position = 0
    for begin, end, name in sorted(ends):
        if begin < position:
            raise CheckpointError(f"{file.name}: {name} overlaps another tensor", DAMAGED)
        position = end
    if position > size - 8 - length:
        missing = position - (size - 8 - length)
        raise CheckpointError(f"{file.name} is truncated: {missing} bytes are missing", DAMAGED)
    return tensors


class _NamedTwiceError(ValueError):
    """A JSON object has a key twice: readers would disagree on which one counts."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise _NamedTwiceError(next(name for i, name in enumerate(names) if name in names[:i]))
    return fields


def _entry(file: Path, name: str, entry: Any) -> tuple[TensorInfo, int, int]:
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{file.name}: the entry of {name} is malformed", DAMAGED) from error
    if not all(type(n) is int and n >= 0 for n in numbers):
        raise CheckpointError(f"{file.name}: {name} has an invalid size or offset", DAMAGED)
    if not isinstance(kind, str) or kind not in DTYPES:
        raise CheckpointError(
            f"{file.name}: {name} has the unknown dtype {kind!r}", f"Known: {', '.join(DTYPES)}."
        )
    if end - begin != math.prod(shape) * DTYPE_BYTES[DTYPES[kind]]:
        raise CheckpointError(
            f"{file.name}: {name} has {end - begin} bytes for {kind} {shape}", DAMAGED
        )
    return TensorInfo(DTYPES[kind], tuple(shape), end - begin), begin, end


def _check_files(folder: Path) -> None:
    """Raise CheckpointError for what libraries that read the folder would wait for, such as a named
    pipe."""
    for file in sorted(folder.iterdir()):
        if file.suffix in _READ:
            check_regular(file, folders=True)


def _read_text(file: Path) -> str:
    try:
        return contents(file, MAX_CONFIG).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file}: {error}", DAMAGED) from error


def _read_json(file: Path) -> dict[str, Any] | None:
    """Return the object in the file, or None if there is no file."""
    if not file.exists():
        return None
    value = _parsed(file)
    if not isinstance(value, dict):
        raise CheckpointError(f"{file.name} is not a JSON object", DAMAGED)
    return value


def _parsed(file: Path) -> Any:
    try:
        return json.loads(_read_text(file))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.name} is not JSON: {error}", DAMAGED) from error


def _modules(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """Return the entries of sentence-transformers' modules.json, each with its own config."""
    file = folder / "modules.json"
    entries = _parsed(file) if file.exists() else []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise CheckpointError(f"{file.name} is not a list of JSON objects", DAMAGED)
    steps: list[Mapping[str, Any]] = []
    for entry in entries:
        path = entry.get("path")
        subfolder = path if isinstance(path, str) and _FOLDER.fullmatch(path) else None
        config = _read_json(folder / subfolder / "config.json") if subfolder is not None else None
        weights = folder / (subfolder or "") / "model.safetensors"
        stored = subfolder is not None and weights.is_file()
        read = {"read": partial(_read_arrays, weights)} if stored else {}
        steps.append({**entry, "config": config or {}, **read})
    return tuple(steps)


def _max_seq_length(folder: Path) -> int | None:
    """Return sentence-transformers' limit of a string's tokens, of a file that older releases named
    after the model's type."""
    for file in sorted(folder.glob("sentence_*_config.json")):
        settings = _read_json(file) or {}
        longest = settings.get("max_seq_length")
        if isinstance(longest, int) and longest > 0:
            return longest
    return None


def _read_arrays(file: Path) -> dict[str, Any]:
    """Return the tensors of a small file as numpy arrays of float32."""
    import numpy as np

    data, values = contents(file, MAX_ARRAYS), dict[str, Any]()
    for name, stored in read_header(file).items():
        raw = data[stored.offset : stored.offset + stored.info.nbytes]
        if stored.info.dtype == "bfloat16":
            array = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        elif stored.info.dtype in ("float16", "float32", "float64"):
            array = np.frombuffer(raw, f"<f{DTYPE_BYTES[stored.info.dtype]}").astype(np.float32)
        else:
            raise CheckpointError(
                f"{file}: {name} is of {stored.info.dtype}", "Store it in float32."
            )
        values[name] = array.reshape(stored.info.shape)
    return values


def _prompts(folder: Path) -> dict[str, Any]:
    """Return sentence-transformers' prompts by name, and the name of the default."""
    settings = _read_json(folder / "config_sentence_transformers.json") or {}
    prompts, default = settings.get("prompts"), settings.get("default_prompt_name")
    if not isinstance(prompts, dict):
        return {}
    texts = {name: text for name, text in prompts.items() if isinstance(text, str)}
    return {"prompts": texts, "default_prompt": default if default in texts else ""}
