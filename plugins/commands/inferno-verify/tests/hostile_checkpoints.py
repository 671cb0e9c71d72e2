"""Checkpoints that mean harm: the demo model, each with one thing changed."""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from inferno.testing import gguf_dialect, load_catalog, write_gguf

MODEL = Path(str(files("inferno_demo"))) / "model"
Change = Callable[[Path], None]


@cache
def _model() -> Path:
    """Return a copy to be linked to: a link changes the times of the file itself, by which other
    tests that run meanwhile know it."""
    folder = Path(tempfile.mkdtemp(prefix="inferno-verify-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(shutil.copytree(MODEL, folder / "model"))


def copy(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for file in _model().iterdir():
        os.link(file, folder / file.name) if _same_disk(file, folder) else shutil.copy(file, folder)
    return folder


def _same_disk(file: Path, folder: Path) -> bool:
    return file.stat().st_dev == folder.stat().st_dev


def write(folder: Path, name: str, content: bytes | str) -> None:
    """Replace a file, and not the one that it is linked to."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def edit(name: str, **values: Any) -> Change:
    def change(folder: Path) -> None:
        fields = json.loads((folder / name).read_text())
        write(folder, name, json.dumps(fields | values))

    return change


def raw(name: str, content: bytes | str) -> Change:
    return lambda folder: write(folder, name, content)


def template(source: str) -> Change:
    return edit("tokenizer_config.json", chat_template=source)


TEMPLATES = {
    "three loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a long string": "{{ 'a' * 20000000000 }}",
    "a wide string": "{{ 'a'.center(2000000000) }}",
    "a wide format": "{{ '%2000000000d' % 1 }}",
    "a wide format method": "{{ '{:>2000000000}'.format(1) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "doubling": "{% set ns = namespace(a='a') %}{% for i in range(60) %}"
    "{% set ns.a = ns.a + ns.a %}{% endfor %}{{ ns.a }}",
    "an escape by a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "an escape by a global": "{{ cycler.__init__.__globals__.os.system('true') }}",
    "an escape by a format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "an import": "{% import 'os' as os %}{{ os.system('true') }}",
    "an include": "{% include '/etc/passwd' %}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "nested brackets": "{{ " + "(" * 4000 + "1" + ")" * 4000 + " }}",
    "nested lists": "{{ " + "[" * 50000 + "]" * 50000 + " }}",
    "not a template": "{% for %}",
    "a megabyte": "{# " + "a" * 2**20 + " #}",
    "a sort of many": "{{ range(99999) | map('string') | sort | join | length * 9999999 }}",
    "a filter again and again": "{{ 'a' * 50000 | indent(50000) }}",
    "a batch": "{{ range(99999) | batch(1) | list | string | length }}",
    "many variables": "{{ " + " ~ ".join(f"v{i}" for i in range(20000)) + " }}",
}
PATTERNS = {
    "nested repeats": "(a+)+$",
    "alternatives": "(a|a)*$",
    "a group of groups": "((a*)*)*b",
    "a look behind": "(?<=(a*))b",
    "a large repeat": "(a{1,1000}){1,1000}",
    "spaces at the end": r"\s+(?!\S)|(\s*\s*)*x",
    "no pattern": "(((",
    "a megabyte": "a" * 2**20,
}


def tokenizer(**values: Any) -> Change:
    return edit("tokenizer.json", **values)


def split_by(pattern: str) -> Change:
    splits = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return tokenizer(pre_tokenizer={**splits, "invert": False})


def added_tokens(folder: Path) -> None:
    each = {"special": True, "single_word": False, "lstrip": False, "rstrip": False}
    tokens = [{"id": i, "content": f"<{i}>", "normalized": False, **each} for i in range(200_000)]
    tokenizer(added_tokens=tokens)(folder)


CONFIGS: dict[str, dict[str, Any]] = {
    "a huge hidden size": {"hidden_size": 2**40},
    "endless layers": {"num_hidden_layers": 10**9},
    "many layers": {"num_hidden_layers": 10**6, "layer_types": None},
    "no layers": {"num_hidden_layers": 0, "layer_types": []},
    "negative layers": {"num_hidden_layers": -1},
    "a huge vocabulary": {"vocab_size": 2**31},
    "no vocabulary": {"vocab_size": 0},
    "no heads": {"num_attention_heads": 0},
    "more key heads": {"num_key_value_heads": 3},
    "heads of nothing": {"head_dim": 0},
    "a huge head": {"head_dim": 2**33},
    "not a number": {"rms_norm_eps": float("nan")},
    "an infinite base": {"rope_theta": 1e400, "rope_parameters": {"rope_theta": 1e400}},
    "text for a number": {"hidden_size": "256"},
    "a list for a number": {"hidden_size": [256]},
    "a float for a number": {"hidden_size": 256.5},
    "an endless context": {"max_position_embeddings": 2**62},
    "another architecture": {"architectures": ["EvilForCausalLM"]},
    "no architecture": {"architectures": []},
    "a path for an architecture": {"architectures": ["../../etc/passwd"]},
    "code of its own": {"auto_map": {"AutoModelForCausalLM": "evil.Model"}},
    "an unknown activation": {"hidden_act": "__import__('os').system('true')"},
    "a huge end": {"eos_token_id": 2**63},
    "a quantization of code": {"quantization_config": {"quant_method": "os.system"}},
    "a deep quantization": {"quantization_config": {"bits": {"bits": {"bits": 4}}}},
}


def header(change: Callable[[dict[str, Any], bytearray], None]) -> Change:
    """Change the header of the safetensors file, or its data."""

    def apply(folder: Path) -> None:
        content = (folder / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        headers, data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
        change(headers, data)
        text = json.dumps(headers).encode()
        write(folder, "model.safetensors", struct.pack("<Q", len(text)) + text + bytes(data))

    return apply


def first(found: dict[str, Any]) -> dict[str, Any]:
    return next(value for name, value in found.items() if name != "__metadata__")


def _set(**values: Any) -> Change:
    return header(lambda found, data: first(found).update(values))


def _drop(found: dict[str, Any], data: bytearray) -> None:
    del found[next(name for name in found if name != "__metadata__")]


def _infinite(found: dict[str, Any], data: bytearray) -> None:
    data[:] = b"\x80\x7f" * (len(data) // 2)


TENSORS: dict[str, Change] = {
    "an endless header": raw("model.safetensors", struct.pack("<Q", 2**63) + b"{}"),
    "a header of a gigabyte": raw("model.safetensors", struct.pack("<Q", 2**30) + b"{}"),
    "no header": raw("model.safetensors", b""),
    "seven bytes": raw("model.safetensors", b"\0" * 7),
    "no JSON": raw("model.safetensors", struct.pack("<Q", 4) + b"evil"),
    "deep JSON": raw("model.safetensors", struct.pack("<Q", 200_000) + b"[" * 200_000),
    "a shape of 2^80": _set(shape=[2**40, 2**40]),
    "a negative shape": _set(shape=[-1, 4]),
    "offsets behind the end": _set(data_offsets=[0, 2**50]),
    "offsets backwards": _set(data_offsets=[100, 0]),
    "an unknown type": _set(dtype="EVIL"),
    "another type": _set(dtype="F64"),
    "a tensor less": header(_drop),
    "no numbers": header(_infinite),
    "cut off": lambda folder: write(
        folder, "model.safetensors", (MODEL / "model.safetensors").read_bytes()[:100_000]
    ),
}


def _link(name: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


def _pipe(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def _sparse(name: str, size: int) -> Change:
    def change(folder: Path) -> None:
        write(folder, name, b"{")
        os.truncate(folder / name, size)

    return change


FILES: dict[str, Change] = {
    "a pipe for the configuration": _pipe("config.json"),
    "a pipe for the tokenizer": _pipe("tokenizer.json"),
    "a pipe for the tensors": _pipe("model.safetensors"),
    "a link to itself": _link("tokenizer.json", "tokenizer.json"),
    "an endless device": _link("config.json", "/dev/zero"),
    "a link to a secret": _link("tokenizer_config.json", "/etc/passwd"),
    "a terabyte of JSON": _sparse("tokenizer.json", 2**40),
    "a gigabyte of configuration": _sparse("config.json", 2**30),
    "deep JSON": raw("config.json", "[" * 10**6),
    "no JSON": raw("config.json", b"\xff\xfe\0\0evil"),
    "a string of JSON": raw("config.json", '"evil"'),
    "a number of a million digits": raw("config.json", f'{{"hidden_size": {"1" * 10**6}}}'),
    "deep JSON for a tokenizer": raw("tokenizer.json", '{"a":' * 10**5),
    "no tokenizer at all": raw("tokenizer.json", "null"),
    "an index of nothing": raw(
        "model.safetensors.index.json", '{"weight_map": {"a": "../../../../etc/passwd"}}'
    ),
}


def folders() -> dict[str, Change]:
    """Every change, by what it is."""
    changes: dict[str, Change] = {}
    changes |= {f"template: {name}": template(source) for name, source in TEMPLATES.items()}
    changes |= {f"pattern: {name}": split_by(source) for name, source in PATTERNS.items()}
    changes |= {"tokenizer: tokens without end": added_tokens}
    changes |= {f"config: {name}": edit("config.json", **given) for name, given in CONFIGS.items()}
    changes |= {f"tensors: {name}": change for name, change in TENSORS.items()}
    return changes | {f"files: {name}": change for name, change in FILES.items()}


def gguf_files(folder: Path, count: int) -> list[Path]:
    """GGUF files with bytes changed, most of them in the header, or cut off."""
    good = folder / "good.gguf"
    config = json.loads((MODEL / "config.json").read_text())
    tensors = load_file(MODEL / "model.safetensors")
    dialect = gguf_dialect(load_catalog(), config["architectures"][0])
    if dialect is None:
        return []
    write_gguf(good, dialect, config, tensors, "F16")
    content, draw = good.read_bytes(), random.Random(11)
    made = []
    for i in range(count):
        changed = bytearray(content)
        for _ in range(draw.choice([1, 4, 32])):
            at = draw.randrange(len(changed) if draw.random() < 0.2 else 4096)
            changed[at] = draw.choice([0, 0x7F, 0xFF, draw.randrange(256)])
        if draw.random() < 0.2:
            del changed[draw.randrange(len(changed)) :]
        made.append(folder / f"{i}.gguf")
        made[-1].write_bytes(changed)
    return made
