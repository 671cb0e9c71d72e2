"""In-situ quantization: how fast matrices are quantized, how long a model takes to load, and how
fast it then decodes, one quantization after the other.

    python benchmarks/isq.py MODEL --isq q4_0 --isq q4_k_m --isq 'int4_g128,*embed_tokens=q6_k'

`dense` is the model as it is stored. The first load of a quantization packs, unless packed weights
of it are on disk; the later ones read them. torch is imported before the first.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from inferno import LLM, SamplingParams
from inferno_cpu.layouts import QUANTIZED
from inferno_cpu.quantize import quantize

PROMPT = list(range(300, 332))
PARAMS = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)


def quantizer(layout: str, weight_OI: torch.Tensor) -> float:
    """Millions of weights per second, the median of seven."""
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        quantize(layout, weight_OI, None)
        seconds.append(time.perf_counter() - start)
    return weight_OI.numel() / statistics.median(seconds) / 1e6


def decode(llm: LLM) -> float:
    """Tokens per second after the first, the median of three answers."""
    rates = []
    for _ in range(3):
        times = [time.perf_counter() for delta in llm.stream(PROMPT, PARAMS) if delta.token_ids]
        rates.append(((PARAMS.max_tokens or 0) - 1) / (times[-1] - times[0]))
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--isq", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    weight_OI = torch.randn(4096, 3072).bfloat16()
    for layout in QUANTIZED:
        print(f"{layout}: {quantizer(layout, weight_OI):.0f} M weights/s", flush=True)
    for _ in range(given.rounds):
        for isq in ("dense", *given.isq):
            options = {} if isq == "dense" else {"isq": isq}
            start = time.perf_counter()
            with LLM(given.model, max_model_len=1024, threads=given.threads, **options) as llm:
                seconds = time.perf_counter() - start
                llm.generate(PROMPT, PARAMS)
                print(f"{isq}: load {seconds:.2f} s, decode {decode(llm):.1f}/s", flush=True)


if __name__ == "__main__":
    main()
