"""Damages GGUF files until something other than a CheckpointError comes out. Not collected by
pytest:

    python fuzz.py 600 FOLDER

runs for ten minutes and keeps what it finds in FOLDER; every finding becomes a test in
test_reader.py or test_text.py. With atheris installed the damage follows the coverage of the
reader, otherwise it is random.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch  # noqa: F401  (its import must not count as a file's time)

try:
    import atheris
except ImportError:
    atheris = None

if atheris is not None:
    with atheris.instrument_imports(include=["inferno_gguf"]):
        import inferno_gguf.checkpoint
        import inferno_gguf.text  # noqa: F401

from inferno.configs import RopeConfig
from inferno.contracts import Architecture, Dialect
from inferno.errors import CheckpointError
from inferno.testing import Tokenizer
from inferno_gguf.checkpoint import GgufCheckpoint

DIALECT = Dialect(architecture="llama", rotary_pairs={"blk.{n}.attn_q": "attention.head_count"})
ARCHITECTURES = [Architecture(name="Llama", config=dict, build=dict, dialects={"gguf": DIALECT})]
MEMORY, SECONDS = 64 << 20, 5.0
"""The most that files of a few KB may cost."""
INTERESTING = [
    0,
    1,
    2,
    7,
    8,
    9,
    255,
    256,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
]


def seeds(folder: Path) -> list[bytes]:
    """Small files of every kind."""
    made = []
    for i, model in enumerate(("gpt2", "llama", "t5", "gemma4")):
        for order in (gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG):
            writer = gguf.GGUFWriter(folder / "seed.gguf", "llama", endianess=order)
            _describe(writer, model)
            shape = (8, 32)
            for name in ("token_embd", "blk.0.attn_q", "blk.0.ffn_down"):
                writer.add_tensor(f"{name}.weight", np.ones(shape, [np.float32, np.float16][i % 2]))
            if i % 2:
                writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))
            writer.add_tensor(
                "output.weight",
                np.zeros((8, 34), np.uint8),
                raw_dtype=gguf.GGMLQuantizationType.Q8_0,
            )
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            made.append((folder / "seed.gguf").read_bytes())
    return made


def _describe(writer: gguf.GGUFWriter, model: str) -> None:
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv([4])
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_scaling_type(
        gguf.RopeScalingType.YARN if model == "gpt2" else gguf.RopeScalingType.LINEAR
    )
    writer.add_rope_scaling_factor(2.0)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre("llama-bpe")
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁a", "<0x00>", "<0x41>", "[PAD10]"]
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3, 1, 1, 1, 1, 1, 6, 6, 5])
    writer.add_token_scores([0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -1.5, -0.5, 0.0, 0.0, -100.0])
    writer.add_token_merges(["a b", "▁ a"])
    writer.add_bos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(
        [{"name": "default", "template": "{{ x }}"}, {"name": "tool_use", "template": "{{ y }}"}]
    )
    if model == "t5":
        units = [0] * 512
        units[0], units[256 ^ ord("x")], units[257 ^ ord("x")] = (
            256 << 10,
            ord("x") | 1 << 8 | 1 << 10,
            1 << 31,
        )
        writer.add_precompiled_charsmap(struct.pack("<513I", 2048, *units) + b"y\0")  # x becomes y
        writer.add_remove_extra_whitespaces(True)


def use(path: Path) -> None:
    """Everything that is asked of a checkpoint before its model is built."""
    try:
        checkpoint = GgufCheckpoint.open(path, ARCHITECTURES)
        json.dumps(checkpoint.config)
        RopeConfig.from_json(checkpoint.config)
        assert sum(info.nbytes for info in checkpoint.tensors.values()) <= path.stat().st_size
        for name, info in checkpoint.tensors.items():
            assert tuple(checkpoint.read(name).shape) == info.shape
        tokenizer = Tokenizer.from_assets(checkpoint.text(), checkpoint.config)
        if tokenizer is not None:
            tokenizer.decode(tokenizer.encode("a ab<s> x b\x00"))
        checkpoint.close()
    except CheckpointError as error:
        assert error.cause and error.remedy


def run_one(data: bytes, path: Path, found: Path) -> None:
    """Raises what a use of the file raises, after the file was kept."""
    path.write_bytes(data)
    started = time.monotonic()
    tracemalloc.start()
    try:
        use(path)
        peak, seconds = tracemalloc.get_traced_memory()[1], time.monotonic() - started
        assert peak < MEMORY, f"{peak} bytes"
        assert seconds < SECONDS, f"{seconds} seconds"
    except BaseException as error:  # a panic of the tokenizers library is no Exception
        if not isinstance(error, KeyboardInterrupt):
            (found / f"{type(error).__name__}-{hash(data) & 0xFFFFFF:06x}.gguf").write_bytes(data)
        raise
    finally:
        tracemalloc.stop()


def damaged(data: bytes, draw: random.Random) -> bytes:
    """One to four changes: a byte, a number that is out of range, a cut, a piece of itself
    somewhere else."""
    out = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        if not out:
            break
        at = draw.randrange(len(out) if draw.random() < 0.2 else min(len(out), 1600))
        match draw.randrange(6):
            case 0:
                out[at] = draw.randrange(256)
            case 1:
                out[at] ^= 1 << draw.randrange(8)
            case 2:
                code, size = draw.choice([("I", 4), ("Q", 8)])
                number = draw.choice(INTERESTING) % (1 << 8 * size)
                out[at : at + size] = struct.pack(draw.choice("<>") + code, number)
            case 3:
                del out[at : at + draw.choice([1, 4, 8, 40])]
            case 4:
                start = draw.randrange(len(out))
                out[at:at] = out[start : start + draw.choice([1, 4, 8, 24, 60])]
            case 5:
                out = out[: max(1, at)] if draw.random() < 0.1 else out
    return bytes(out)


def main(seconds: float, found: Path) -> None:
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        path, corpus, draw = Path(name) / "fuzzed.gguf", seeds(Path(name)), random.Random(0)

        def one(data: bytes) -> None:
            run_one(data, path, found)

        if atheris is not None:
            folder = Path(name) / "corpus"
            folder.mkdir()
            for i, seed in enumerate(corpus):
                (folder / f"seed{i}").write_bytes(seed)

            def mutate(data: bytes, max_size: int, seed: int) -> Any:
                drawn = random.Random(seed)
                made = (
                    damaged(data, drawn)
                    if data and drawn.random() < 0.7
                    else atheris.Mutate(data, len(data))
                )
                return made[:max_size]

            options = [
                f"-max_total_time={int(seconds)}",
                "-max_len=8192",
                "-timeout=20",
                "-rss_limit_mb=6000",
                str(folder),
            ]
            atheris.Setup([sys.argv[0], *options], one, custom_mutator=mutate)
            atheris.Fuzz()
            return
        count, failures, end = 0, 0, time.monotonic() + seconds
        while time.monotonic() < end:
            count += 1
            try:
                one(damaged(draw.choice(corpus), draw))
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                failures += 1
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
        print(f"{count} files, {failures} failures")


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
