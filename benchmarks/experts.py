"""Decode of a small mixture of experts, random weights, engines in turns: `python benchmarks/experts.py [--rounds 9]`.

Each engine is a process of its own that stays loaded; a round asks each for so many tokens after a prompt of 32. One sequence,
wall-clock time; `--cpu-time` where the machine is busy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MODEL = Path.home() / ".cache" / "inferno-bench" / "models" / "moe-340m"
SHAPE: dict[str, Any] = {
    "vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 3072, "moe_intermediate_size": 384, "num_experts": 32,
    "num_experts_per_tok": 4, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
    "max_position_embeddings": 2048, "norm_topk_prob": True, "tie_word_embeddings": False,
}  # fmt: skip
ENGINES = ("native bf16", "native bf16, not replayed", "native Q8_0", "torch bf16", "transformers bf16")
PROMPT = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--engine", help="what this process is, of the driver's")
    args = parser.parse_args()
    if args.engine:
        serve(args.engine, args.threads, time.process_time if args.cpu_time else time.perf_counter)
        return
    if not (MODEL / "config.json").exists():
        make()
    workers = {name: start(name) for name in ENGINES}
    seconds: dict[str, list[float]] = {name: [] for name in ENGINES}
    for seed in range(args.rounds):
        for name, worker in workers.items():
            assert worker.stdin is not None and worker.stdout is not None
            worker.stdin.write(f"{args.tokens} {seed}\n")
            worker.stdin.flush()
            seconds[name].append(float(worker.stdout.readline()))
    for worker in workers.values():
        worker.kill()
    print(f"Median ms a token of {args.rounds} rounds in turns, {args.threads} threads\n")
    print("| engine | ms | least | most |\n|---|---|---|---|")
    for name, found in seconds.items():
        shown = (statistics.median(found), min(found), max(found))
        print(f"| {name} | {' | '.join(f'{1e3 * s:.1f}' for s in shown)} |")


def make() -> None:
    import transformers

    from inferno.testing import randomize

    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model("qwen3_moe", **SHAPE), dtype=torch.bfloat16
    )
    randomize(model)
    model.save_pretrained(MODEL)


def start(name: str) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [sys.executable, __file__, "--engine", name, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},  # the one that is not asked must not spin
    )  # fmt: skip
    assert worker.stdout is not None
    while worker.stdout.readline().strip() != "ready":
        assert worker.poll() is None, f"{name} does not start"
    return worker


def serve(name: str, threads: int, clock: Callable[[], float]) -> None:
    """Answers each line "tokens seed" with the seconds of a token, the first one and the prompt not counted."""
    torch.set_num_threads(threads)
    decode = transformers_decode(clock) if name.startswith("transformers") else inferno_decode(name, threads, clock)
    for seed in range(2):
        decode(4, prompt(seed))
    print("ready", flush=True)
    for line in sys.stdin:
        tokens, seed = map(int, line.split())
        print(decode(tokens, prompt(seed + 2)), flush=True)


def prompt(seed: int) -> torch.Tensor:
    return torch.randint(100, SHAPE["vocab_size"], (1, PROMPT), generator=torch.Generator().manual_seed(seed))


def transformers_decode(clock: Callable[[], float]) -> Callable[[int, torch.Tensor], float]:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.bfloat16, experts_implementation="grouped_mm"
    ).eval()

    @torch.inference_mode()
    def decode(tokens: int, ids: torch.Tensor) -> float:
        out = model(ids, use_cache=True)
        begin = clock()
        for _ in range(tokens):
            out = model(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)
        return (clock() - begin) / tokens

    return decode


def inferno_decode(name: str, threads: int, clock: Callable[[], float]) -> Callable[[int, torch.Tensor], float]:
    from inferno.engine.core import Engine
    from inferno.plan import Options, resolve
    from inferno.types import Request, SamplingParams

    options = Options(
        device="cpu", dtype="bfloat16", max_model_len=512, threads=threads, isq="q8_0" if "Q8_0" in name else None,
        disable=("inferno-cpu",) if name.startswith("torch") else (),
    )  # fmt: skip
    engine: Any = Engine.load(resolve(str(MODEL), options))
    if "not replayed" in name:
        engine._runner._replays = None

    def decode(tokens: int, ids: torch.Tensor) -> float:
        params = SamplingParams(temperature=0, max_tokens=tokens + 1, ignore_eos=True)
        engine.submit(Request(id=str(time.monotonic_ns()), token_ids=tuple(ids[0].tolist()), params=params))
        while not engine.step():
            pass
        begin = clock()
        while engine.busy:
            engine.step()
        return (clock() - begin) / tokens

    return decode


if __name__ == "__main__":
    main()
