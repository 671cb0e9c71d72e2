"""Time of a whole step after contexts of any length, without computing these: their keys and values
are made up. `python benchmarks/contexts.py REF [--contexts 512 16384 ...]`.

A decode step is held against the speed of memory: the bytes of the weights and of the context's
keys and values, over a read of 1 GB taken beside it. The rest of a prompt that is found in the
cache, up to a block, is computed as it was, and replayed like a decode step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from attention import interleaved, probe_of  # beside this file

from inferno.core.engine import Engine
from inferno.core.runner import ModelRunner, StepArrays
from inferno.core.types import Slice, Step
from inferno.plan import Options, open_model
from inferno_cpu import _native

_PROBED = 1_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ref")
    parser.add_argument("--contexts", nargs="*", type=int, default=[512, 4096, 16384])
    parser.add_argument("--rest", nargs="*", type=int, default=[16])
    parser.add_argument("--cache-dtype", default="auto")
    parser.add_argument("--isq")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    longest = max(args.contexts)
    options = Options(
        device="cpu",
        dtype="bfloat16",
        max_model_len=longest,
        max_num_seqs=1,
        kv_cache_dtype=args.cache_dtype,
        isq=args.isq,
        threads=args.threads,
    )
    with open_model(args.ref, options) as opened:
        engine = Engine.load(opened)
    runner = engine._runner
    assert isinstance(runner, ModelRunner)
    weights = sum(item.nbytes for item in engine.plan.memory if item.name == "weights")
    print(f"{_native.selected()}, {args.threads} threads, cache {args.cache_dtype}, {args.isq}")
    blocks = -(-longest // engine.plan.block_size)
    cache_bytes = 0
    for layer in runner.cache.layers:
        for tensor in layer.values():
            tensor[:blocks].view(torch.uint8).fill_(0x3A)  # a small value in every type
            cache_bytes += tensor[:blocks].numel() * tensor.itemsize
    tables = runner._tables
    tables.block_ids[0][0, :blocks] = torch.randperm(blocks).numpy()
    probe = probe_of(_PROBED)
    for context in args.contexts:
        arrays = tables.lay_out(Step((Slice(0, context - 1, 1, True),)))
        [step, read] = interleaved(partial(replay, runner, arrays), probe, rounds=args.rounds)
        size = weights + cache_bytes * context / longest
        print(
            f"context {context:6}: a token {step * 1e3:7.1f} ms, {size / step / 1e9:5.1f} GB/s of "
            f"{_PROBED / read / 1e9:5.1f}: {size / step / (_PROBED / read):4.0%}",
            flush=True,
        )
        for rest in args.rest:
            arrays = tables.lay_out(Step((Slice(0, context - rest, rest, True),)))
            replay(runner, arrays)
            as_before, replayed = interleaved(
                computed(runner, arrays), partial(replay, runner, arrays), rounds=args.rounds
            )
            print(
                f"  the last {rest} of {context}: computed {as_before * 1e3:.1f} ms, "
                f"replayed {replayed * 1e3:.1f} ms",
                flush=True,
            )


def replay(runner: ModelRunner, arrays: StepArrays) -> None:
    assert runner.replays is not None
    with torch.inference_mode():
        runner.replays.run(arrays)


def computed(runner: ModelRunner, arrays: StepArrays) -> Callable[[], None]:
    """Return the step as it is without a capture."""

    def step() -> None:
        with torch.inference_mode():
            inputs = runner._input_spec.inputs_of(arrays)
            hidden_TD = runner._model(inputs.batch(arrays))
            runner.logits_of(hidden_TD[inputs.last_L])

    return step


if __name__ == "__main__":
    main()
