"""llama.cpp through llama-cpp-python's low-level interface, one batch per step, on a GGUF file.
Contexts are made for the number of sequences and kept while it stays the same. What it was built
with, and its attention, go into the log."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp as L
import numpy as np
from worker import MAX_MODEL_LEN, THREADS, serve

_BATCH = 2048


class Runner:
    """A model and the context it last needed."""

    def __init__(self, path: Path) -> None:
        L.llama_backend_init()
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = L.llama_model_load_from_file(str(path).encode(), params)
        self._vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self._model))
        self._context: Any = None
        self._num_seqs = self._length = 0
        self._batch = L.llama_batch_init(_BATCH, 0, 1)

    def generate(self, prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, float]:
        self._make_room(len(prompts), max(map(len, prompts)) + new_tokens)
        L.llama_memory_clear(L.llama_get_memory(self._context), True)
        start = perf_counter()
        last = [0] * len(prompts)
        news = [
            (t, p, s, p == len(prompt) - 1)
            for s, prompt in enumerate(prompts)
            for p, t in enumerate(prompt)
        ]
        for begin in range(0, len(news), _BATCH):
            self._decode(news[begin : begin + _BATCH], last)
        first = perf_counter() - start
        for i in range(new_tokens - 1):
            self._decode(
                [(last[s], len(prompt) + i, s, True) for s, prompt in enumerate(prompts)], last
            )
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
                logits = np.ctypeslib.as_array(
                    L.llama_get_logits_ith(self._context, i), (self._vocab,)
                )
                last[sequence] = int(np.argmax(logits))

    def _make_room(self, num_seqs: int, length: int) -> None:
        if (num_seqs, True) == (self._num_seqs, length <= self._length):
            return
        if self._context is not None:
            L.llama_free(self._context)
        params = L.llama_context_default_params()
        self._num_seqs, self._length = (
            num_seqs,
            MAX_MODEL_LEN if num_seqs == 1 else -(-length // 256) * 256,
        )
        params.n_ctx, params.n_seq_max = num_seqs * self._length, num_seqs
        params.n_batch, params.n_ubatch = _BATCH, 512
        params.n_threads = params.n_threads_batch = THREADS
        params.no_perf = True
        if getattr(params, "n_outputs_max", 0):
            params.n_outputs_max = max(params.n_outputs_max, num_seqs)
        self._context = L.llama_init_from_model(self._model, params)
        assert self._context, "llama.cpp made no context"


@L.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    if any(word in text for word in (b"flash_attn", b"Flash Attention", b"n_ubatch", b"n_threads")):
        sys.stderr.write(text.decode(errors="replace"))


if __name__ == "__main__":
    L.llama_log_set(_log, None)
    print(L.llama_print_system_info().decode(), file=sys.stderr, flush=True)
    serve("llama-cpp-python", Runner(Path(sys.argv[1])).generate)
