"""llama.cpp's side of `gguf_parity.py`: writes GGUF models, has llama.cpp quantize them, and says
what it computes with them.

Runs in an environment of its own that has llama-cpp-python, gguf and numpy, and imports nothing of
inferno: what it writes and computes owes nothing to what is compared with it. One JSON request a
line comes in, one reply a line goes out.

Suffixes: S sequences, N generated tokens, V vocabulary, O rows, I columns.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as L
import numpy as np

Array = np.ndarray[Any, Any]

MAX_LENGTH = 640
"""Longest sequence that is asked for: a window of held-out text, or a prompt and what follows
it."""
BATCH = 512
NUM_SEQS = 8

PLAIN = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "BF16": gguf.GGMLQuantizationType.BF16,
}
MIXES = {
    name: getattr(L, f"LLAMA_FTYPE_MOSTLY_{name}")
    for name in (
        "Q8_0",
        "Q6_K",
        "Q5_K_M",
        "Q5_1",
        "Q5_0",
        "Q4_K_M",
        "Q4_1",
        "Q4_0",
        "IQ4_NL",
        "IQ4_XS",
        "Q3_K_M",
        "Q2_K",
    )
}
"""As llama.cpp quantizes by default: the head and some matrices are kept in a finer type."""
_MOSTLY = {
    "MXFP4": "MXFP4_MOE",
    "IQ2_S": "IQ2_M",
}  # the mix whose main type it is, where that has another name
PURE = {
    name: getattr(L, f"LLAMA_FTYPE_MOSTLY_{_MOSTLY.get(name, name)}")
    for name in (
        "MXFP4",
        "IQ3_S",
        "IQ3_XXS",
        "IQ2_S",
        "IQ2_XS",
        "IQ2_XXS",
        "TQ2_0",
        "TQ1_0",
        "IQ1_M",
        "IQ1_S",
    )
}
"""Every matrix in that one type, the embedding too. All columns count as equally important: some
types must be told."""


# The models
# ----------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A decoder to be filled with random numbers."""

    architecture: str
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: str
    tied: bool = False
    rope_theta: float = 1e4
    divided: bool = False
    """Rotary frequencies with Llama 3's divisors."""
    seed: int = 0
    hidden: int = 256
    inner: int = 512
    layers: int = 2
    vocab_size: int = 1024


RANDOM = {
    "llama": Shape("llama", 4, 1, 64, "llama", seed=1),
    "llama-3": Shape("llama", 4, 2, 64, "llama-bpe", rope_theta=5e5, divided=True, seed=2),
    "qwen3": Shape("qwen3", 4, 2, 128, "qwen2", rope_theta=1e6, seed=3),
    "qwen3-tied": Shape("qwen3", 2, 2, 128, "gpt-2", rope_theta=1e6, tied=True, seed=4),
}


def random_tensors(shape: Shape) -> Iterator[tuple[str, Array]]:
    """By llama.cpp's names, all bfloat16 numbers. An untied head expects, for each token, another
    token's embedding, so that the likeliest token stands out; the layers are strong enough to
    change which one it is."""
    rng = np.random.default_rng(shape.seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Array:
        return rounded(
            rng.standard_normal((rows, columns), np.float32) * np.float32(gain * columns**-0.5)
        )

    def norm(width: int) -> Array:
        return rounded(1 + 0.2 * rng.standard_normal(width, np.float32))

    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    embedding = matrix(shape.vocab_size, shape.hidden, gain=4 if shape.tied else 16)
    yield "token_embd.weight", embedding
    if not shape.tied:
        yield (
            "output.weight",
            rounded(0.1 * embedding[rng.permutation(shape.vocab_size)] + matrix(*embedding.shape)),
        )
    yield "output_norm.weight", norm(shape.hidden)
    if shape.divided:
        yield "rope_freqs.weight", np.geomspace(1, 8, shape.head_dim // 2).astype(np.float32)
    for i in range(shape.layers):
        yield f"blk.{i}.attn_norm.weight", norm(shape.hidden)
        yield f"blk.{i}.attn_q.weight", matrix(query, shape.hidden, gain=1.5)
        yield f"blk.{i}.attn_k.weight", matrix(key, shape.hidden, gain=1.5)
        yield f"blk.{i}.attn_v.weight", matrix(key, shape.hidden)
        yield f"blk.{i}.attn_output.weight", matrix(shape.hidden, query, gain=2)
        if shape.architecture == "qwen3":
            yield f"blk.{i}.attn_q_norm.weight", norm(shape.head_dim)
            yield f"blk.{i}.attn_k_norm.weight", norm(shape.head_dim)
        yield f"blk.{i}.ffn_norm.weight", norm(shape.hidden)
        yield f"blk.{i}.ffn_gate.weight", matrix(shape.inner, shape.hidden)
        yield f"blk.{i}.ffn_up.weight", matrix(shape.inner, shape.hidden)
        yield f"blk.{i}.ffn_down.weight", matrix(shape.hidden, shape.inner, gain=3)


def rounded(values: Array) -> Array:
    """To the nearest bfloat16 numbers."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def demo_tensors(folder: Path) -> Iterator[tuple[str, Array]]:
    """The demo model's: bfloat16 safetensors, a tied Qwen3."""
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, layers)
    data = np.memmap(folder / "model.safetensors", np.uint8, "r")
    start = 8 + int(data[:8].view(np.uint64)[0])
    for name, info in json.loads(bytes(data[8:start])).items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            halves = (
                np.asarray(data[start + begin : start + end]).view(np.uint16).reshape(info["shape"])
            )
            yield (
                f"{names[name.removesuffix('.weight')]}.weight",
                (halves.astype(np.uint32) << 16).view(np.float32),
            )


def demo_shape(config: Mapping[str, Any]) -> Shape:
    return Shape(
        config["model_type"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
        "qwen2",
        tied=config["tie_word_embeddings"],
        rope_theta=config["rope_theta"],
        hidden=config["hidden_size"],
        inner=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        vocab_size=config["vocab_size"],
    )


def write(name: str, kind: str, demo: Path, path: Path) -> None:
    """The named model, its matrices stored as F32, F16 or BF16."""
    shape = RANDOM.get(name) or demo_shape(json.loads((demo / "config.json").read_text()))
    writer = gguf.GGUFWriter(str(path), shape.architecture)
    writer.add_name(name)
    writer.add_block_count(shape.layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.vocab_size)
    add_tokenizer(writer, json.loads((demo / "tokenizer.json").read_text()), shape)
    for target, values in random_tensors(shape) if name in RANDOM else demo_tensors(demo):
        stored = PLAIN[kind] if values.ndim > 1 else PLAIN["F32"]
        writer.add_tensor(target, gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Mapping[str, Any], shape: Shape) -> None:
    """The first tokens of the demo model's vocabulary, cut as the named kind of tokenizer does.
    Tokens were numbered as they were merged: the first ones are a vocabulary of their own."""
    if shape.vocabulary == "llama":
        add_sentencepiece(writer, tokenizer["model"]["vocab"], shape.vocab_size)
        return
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    names = {i: token for token, i in tokenizer["model"]["vocab"].items()} | {
        i: t["content"] for i, t in added.items()
    }
    tokens = [names[i] for i in range(shape.vocab_size)]
    known = set(tokens)
    kinds = {True: gguf.TokenType.CONTROL, False: gguf.TokenType.USER_DEFINED}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(shape.vocabulary)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [
            kinds[added[i]["special"]] if i in added else gguf.TokenType.NORMAL
            for i in range(len(tokens))
        ]
    )
    writer.add_token_merges(
        [" ".join(pair) for pair in tokenizer["model"]["merges"] if "".join(pair) in known]
    )
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(shape.vocabulary == "llama-bpe")


def add_sentencepiece(writer: gguf.GGUFWriter, vocab: Mapping[str, int], size: int) -> None:
    """Llama 2's kind: the same words as pieces with scores, and a token for every byte."""
    words = (word_of(token) for token in sorted(vocab, key=lambda token: vocab[token]))
    pieces = dict.fromkeys(
        word.replace(" ", "▁") for word in words if word and not set(word) & set("\0\n<")
    )
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces][:size]
    kinds = [
        gguf.TokenType.UNKNOWN,
        gguf.TokenType.CONTROL,
        gguf.TokenType.CONTROL,
        *[gguf.TokenType.BYTE] * 256,
    ]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * (size - len(kinds))])
    writer.add_token_scores([0.0 if i < len(kinds) else float(len(kinds) - i) for i in range(size)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)


def word_of(token: str) -> str:
    """A byte-level token's text; empty where its bytes are no whole characters."""
    plain = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }
    try:
        return bytes(table[character] for character in token).decode()
    except (KeyError, UnicodeDecodeError):
        return ""


# llama.cpp
# ----------------------------------------------------------------------


def quantize(source: Path, kind: str, path: Path) -> None:
    """`kind` is one of MIXES or PURE, or F32: the values that a quantized file stands for."""
    params = L.llama_model_quantize_default_params()
    params.nthread, params.allow_requantize = 1, True
    params.ftype = {"F32": L.LLAMA_FTYPE_ALL_F32, **MIXES, **PURE}[kind]
    params.pure = kind in PURE
    if kind in PURE:
        columns = {
            t.name: int(t.shape[0]) for t in gguf.GGUFReader(source).tensors if len(t.shape) > 1
        }
        ones = np.ones(max(columns.values()), np.float32).ctypes.data_as(
            ctypes.POINTER(ctypes.c_float)
        )
        table = (
            L.llama_model_imatrix_data * (len(columns) + 1)
        )()  # the last one has no name: the end
        for entry, (name, count) in zip(table, columns.items(), strict=False):
            entry.name, entry.data, entry.size = name.encode(), ones, count
        params.imatrix = table
    if L.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp does not quantize to {kind}")


class Model:
    """A GGUF file in llama.cpp, with an exact cache: float32, no flash attention."""

    def __init__(self, path: Path, length: int) -> None:
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = L.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path.name}")
        self._vocab = L.llama_model_get_vocab(self._model)
        self._width = L.llama_vocab_n_tokens(self._vocab)
        options = L.llama_context_default_params()
        options.n_ctx, options.n_seq_max = NUM_SEQS * length, NUM_SEQS
        options.n_batch = options.n_ubatch = options.n_outputs_max = BATCH
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = L.GGML_TYPE_F32
        options.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.no_perf = True
        self._context = L.llama_init_from_model(self._model, options)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context for {path.name}")
        self._batch = L.llama_batch_init(BATCH, 0, 1)

    def close(self) -> None:
        L.llama_batch_free(self._batch)
        L.llama_free(self._context)
        L.llama_model_free(self._model)

    def tokenize(self, text: str) -> list[int]:
        raw = text.encode()
        ids = (L.llama_token * (len(raw) + 8))()
        return list(ids[: L.llama_tokenize(self._vocab, raw, len(raw), ids, len(ids), True, True)])

    def greedy(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[list[list[int]], Array]:
        """Token ids and the logits each was chosen from, (S, N, V)."""
        L.llama_memory_clear(L.llama_get_memory(self._context), True)
        logits_SNV = np.empty((len(prompts), count, self._width), np.float32)
        for s, prompt in enumerate(prompts):
            logits_SNV[s, 0] = self._decode(
                [(t, p, s, p == len(prompt) - 1) for p, t in enumerate(prompt)]
            )[-1]
        for i in range(count - 1):
            drawn = logits_SNV[:, i].argmax(-1).tolist()
            logits_SNV[:, i + 1] = self._decode(
                [(t, len(prompts[s]) + i, s, True) for s, t in enumerate(drawn)]
            )
        return logits_SNV.argmax(-1).tolist(), logits_SNV

    def nats(self, windows: Iterable[Sequence[int]]) -> float:
        """Summed over every token but each window's first."""
        total = 0.0
        for window in windows:
            L.llama_memory_clear(L.llama_get_memory(self._context), True)
            logits = self._decode(
                [(token, p, 0, True) for p, token in enumerate(window[:-1])]
            ).astype(np.float64)
            top = logits.max(-1)
            norms = top + np.log(np.exp(logits - top[:, None]).sum(-1))
            total += float((norms - logits[np.arange(len(norms)), window[1:]]).sum())
        return total

    def _decode(self, news: Sequence[tuple[int, int, int, bool]]) -> Array:
        """Logits of the tokens that want them, in order."""
        batch = self._batch
        batch.n_tokens = len(news)
        for i, (token, position, sequence, wanted) in enumerate(news):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        if L.llama_decode(self._context, batch):
            raise RuntimeError("llama.cpp does not compute the batch")
        count = sum(wanted for *_, wanted in news)
        return np.ctypeslib.as_array(L.llama_get_logits(self._context), (count, self._width)).copy()


# Requests
# ----------------------------------------------------------------------


def describe(path: Path) -> dict[str, Any]:
    """How large a file's weights are, and which types they have."""
    tensors = gguf.GGUFReader(path).tensors
    matrices = Counter(t.tensor_type.name for t in tensors if len(t.shape) > 1)
    weights = sum(int(np.prod(t.shape)) for t in tensors)
    return {
        "bytes_per_weight": sum(int(t.n_bytes) for t in tensors) / weights,
        "matrices": dict(matrices.most_common()),
    }


def make(model: str, kind: str, demo: str, folder: str) -> dict[str, Any]:
    """The file of a model in one type, and the file with the same values in F32."""
    source, path = Path(folder, f"{model}-F32.gguf"), Path(folder, f"{model}-{kind}.gguf")
    if kind in PLAIN:
        write(model, kind, Path(demo), path)
    else:
        quantize(source, kind, path)
    values = path if kind == "F32" else Path(folder, f"{model}-{kind}-values.gguf")
    if kind != "F32":
        quantize(path, "F32", values)
    return {"path": str(path), "values": str(values), **describe(path)}


def run(
    path: str,
    texts: Sequence[str],
    prompts: Sequence[Sequence[int]],
    count: int,
    windows: Sequence[Sequence[int]],
    logits: str,
    length: int,
) -> dict[str, Any]:
    model = Model(Path(path), length)
    try:
        ids = [model.tokenize(text) for text in texts]
        token_ids, logits_SNV = model.greedy(prompts, count)
        np.save(logits, logits_SNV)
        return {"ids": ids, "token_ids": token_ids, "nats": model.nats(windows)}
    finally:
        model.close()


def values(path: str, target: str) -> dict[str, Any]:
    """What a file's values are in F32."""
    quantize(Path(path), "F32", Path(target))
    return {}


def kinds() -> dict[str, Any]:
    return {"kinds": [*PLAIN, *MIXES, *PURE], "models": ["demo", *RANDOM], "plain": [*PLAIN]}


@L.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    if level == 4:  # errors
        sys.stderr.write(text.decode(errors="replace"))


def serve() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the library prints is no reply
    L.llama_log_set(_log, None)
    L.llama_backend_init()
    answers: dict[str, Callable[..., dict[str, Any]]] = {
        "make": make,
        "run": run,
        "values": values,
        "kinds": kinds,
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = answers[request.pop("do")](**request)
        except RuntimeError as error:
            reply = {"error": str(error)}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    serve()
