"""llama.cpp through llama-cpp-python's low-level interface, one batch per step, on a GGUF file.
Contexts are made for the number of sequences and kept while it stays the same. Tokens are drawn by
its own greedy sampler. What it was built with, and its attention, go into the log."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp as L
from worker import KEEPS, MAX_MODEL_LEN, THREADS, serve

_BATCH = 2048


class Runner:
    """A model and the context it last needed."""

    def __init__(self, path: Path) -> None:
        L.llama_backend_init()
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = L.llama_model_load_from_file(str(path).encode(), params)
        self._sampler = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
        L.llama_sampler_chain_add(self._sampler, L.llama_sampler_init_greedy())
        self._context: Any = None
        self._num_seqs = self._length = 0
        self._kept: list[int] = []
        self._batch = L.llama_batch_init(_BATCH, 0, 1)
        for i in range(_BATCH):
            self._batch.n_seq_id[i] = 1
        self._tokens = _array(self._batch.token, L.llama_token)
        self._positions = _array(self._batch.pos, L.llama_pos)

    def generate(self, prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, float]:
        self._make_room(len(prompts), max(map(len, prompts)) + new_tokens)
        begin = self._forget(prompts)
        start = perf_counter()
        last = self._compute(prompts, begin)
        first = perf_counter() - start
        lengths = [len(prompt) for prompt in prompts]
        self._prepare(len(prompts))
        for i in range(new_tokens - 1):
            last = self._step(last, lengths, i)
        self._kept = prompts[0]
        return first, perf_counter() - start

    def _forget(self, prompts: Sequence[list[int]]) -> int:
        """Clear the cache, except for the beginning of a prompt that it has. Returns the length of
        that: the last token is always computed."""
        memory = L.llama_get_memory(self._context)
        if not KEEPS:
            L.llama_memory_clear(memory, False)  # its data may stay
            return 0
        limit = min(len(self._kept), len(prompts[0]) - 1)
        pairs = zip(self._kept[:limit], prompts[0], strict=False)
        begin = next((i for i, (held, new) in enumerate(pairs) if held != new), limit)
        L.llama_memory_seq_rm(memory, 0, begin, -1)
        return begin

    def _compute(self, prompts: Sequence[list[int]], begin: int) -> list[int]:
        """The first token of each prompt."""
        batch, last = self._batch, [0] * len(prompts)
        news = [
            (t, p, s, p == len(prompt) - 1)
            for s, prompt in enumerate(prompts)
            for p, t in enumerate(prompt)
            if p >= begin
        ]
        for at in range(0, len(news), _BATCH):
            part = news[at : at + _BATCH]
            batch.n_tokens = len(part)
            for i, (token, position, sequence, wanted) in enumerate(part):
                batch.token[i], batch.pos[i] = token, position
                batch.seq_id[i][0], batch.logits[i] = sequence, wanted
            assert L.llama_decode(self._context, batch) == 0
            for i, (_, _, sequence, wanted) in enumerate(part):
                if wanted:
                    last[sequence] = L.llama_sampler_sample(self._sampler, self._context, i)
        return last

    def _prepare(self, num_seqs: int) -> None:
        """What is the same in every decode step."""
        batch = self._batch
        batch.n_tokens = num_seqs
        for i in range(num_seqs):
            batch.seq_id[i][0], batch.logits[i] = i, True

    def _step(self, last: list[int], lengths: list[int], i: int) -> list[int]:
        """A decode step of all sequences, the `i`-th."""
        count = len(last)
        self._tokens[:count], self._positions[:count] = last, [length + i for length in lengths]
        assert L.llama_decode(self._context, self._batch) == 0
        return [L.llama_sampler_sample(self._sampler, self._context, s) for s in range(count)]

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
        if KEEPS:  # from some 500 tokens on, it decodes faster so
            params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if getattr(params, "n_outputs_max", 0):
            params.n_outputs_max = max(params.n_outputs_max, num_seqs)
        self._context = L.llama_init_from_model(self._model, params)
        assert self._context, "llama.cpp made no context"
        self._kept = []


def _array(pointer: Any, kind: Any) -> Any:
    return ctypes.cast(pointer, ctypes.POINTER(kind * _BATCH)).contents


@L.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    if any(word in text for word in (b"flash_attn", b"Flash Attention", b"n_ubatch", b"n_threads")):
        sys.stderr.write(text.decode(errors="replace"))


if __name__ == "__main__":
    L.llama_log_set(_log, None)
    about = L.llama_print_system_info().decode()
    print(about, file=sys.stderr, flush=True)
    names = " ".join(re.findall(r"(\w+) = 1", about))
    serve("llama-cpp-python", Runner(Path(sys.argv[1])).generate, lambda: names)
