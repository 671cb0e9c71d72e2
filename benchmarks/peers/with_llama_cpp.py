"""llama.cpp through llama-cpp-python's low-level interface, one batch per step. The checkpoint is written as GGUF once, beside
itself. Contexts are made for the number of sequences and kept while it stays the same."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import gguf
import llama_cpp as L
import numpy as np
from worker import MAX_MODEL_LEN, THREADS, serve

_PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
_BATCH = 2048


def gguf_of(folder: Path) -> Path:
    path = folder / "bf16.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        _convert(folder, part)
        part.rename(path)
    return path


def _convert(folder: Path, path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads, head_dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    arch = config["model_type"]
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{i}" for i in range(config["vocab_size"])])  # prompts come as ids
    writer.add_token_merges(["t t"])
    writer.add_eos_token_id(config["eos_token_id"])
    for name, raw in _tensors(folder / "model.safetensors"):
        place = name.split(".")
        stem = ".".join(place[3:-1])
        target = _WHOLE.get(name) or f"blk.{place[2]}.{_PARTS[stem]}.weight"
        if arch == "llama" and stem in ("self_attn.q_proj", "self_attn.k_proj"):  # its rotation pairs neighbours
            count = heads if stem == "self_attn.q_proj" else kv_heads
            raw = np.ascontiguousarray(raw.reshape(count, 2, -1, raw.shape[1]).swapaxes(1, 2)).reshape(raw.shape)
        if raw.ndim == 1:
            writer.add_tensor(target, (raw.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(target, raw.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(path: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """A bf16 safetensors file's tensors, as 16-bit patterns."""
    data = np.memmap(path, np.uint8, "r")
    start = 8 + int(data[:8].view(np.uint64)[0])
    for name, info in json.loads(bytes(data[8:start])).items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            yield name, np.asarray(data[start + begin : start + end]).view(np.uint16).reshape(info["shape"])


class Runner:
    """A model and the context it last needed."""

    def __init__(self, path: Path) -> None:
        L.llama_backend_init()
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = L.llama_model_load_from_file(str(path).encode(), params)
        self._vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self._model))
        self._context, self._num_seqs, self._length = None, 0, 0
        self._batch = L.llama_batch_init(_BATCH, 0, 1)

    def generate(self, prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, float]:
        self._make_room(len(prompts), max(map(len, prompts)) + new_tokens)
        L.llama_memory_clear(L.llama_get_memory(self._context), True)
        start = perf_counter()
        last = [0] * len(prompts)
        news = [(t, p, s, p == len(prompt) - 1) for s, prompt in enumerate(prompts) for p, t in enumerate(prompt)]
        for begin in range(0, len(news), _BATCH):
            self._decode(news[begin : begin + _BATCH], last)
        first = perf_counter() - start
        for i in range(new_tokens - 1):
            self._decode([(last[s], len(prompt) + i, s, True) for s, prompt in enumerate(prompts)], last)
        return first, perf_counter() - start

    def _decode(self, news: Sequence[tuple[int, int, int, bool]], last: list[int]) -> None:
        batch = self._batch
        batch.n_tokens = len(news)
        for i, (token, position, sequence, wanted) in enumerate(news):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        assert L.llama_decode(self._context, batch) == 0
        for i, (_, _, sequence, wanted) in enumerate(news):
            if wanted:
                logits = np.ctypeslib.as_array(L.llama_get_logits_ith(self._context, i), (self._vocab,))
                last[sequence] = int(np.argmax(logits))

    def _make_room(self, num_seqs: int, length: int) -> None:
        if (num_seqs, True) == (self._num_seqs, length <= self._length):
            return
        if self._context is not None:
            L.llama_free(self._context)
        params = L.llama_context_default_params()
        self._num_seqs, self._length = num_seqs, MAX_MODEL_LEN if num_seqs == 1 else -(-length // 256) * 256
        params.n_ctx, params.n_seq_max = num_seqs * self._length, num_seqs
        params.n_batch, params.n_ubatch = _BATCH, 512
        params.n_threads = params.n_threads_batch = THREADS
        params.no_perf = True
        if getattr(params, "n_outputs_max", 0):
            params.n_outputs_max = max(params.n_outputs_max, num_seqs)
        self._context = L.llama_init_from_model(self._model, params)
        assert self._context, "llama.cpp made no context"


@L.llama_log_callback  # type: ignore[misc]
def _quiet(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    pass


if __name__ == "__main__":
    L.llama_log_set(_quiet, None)
    serve("llama-cpp-python", Runner(gguf_of(Path(sys.argv[1]))).generate)
