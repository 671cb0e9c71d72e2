"""Measure drafts on a model with recurrent states beside plain decoding, in turns.

    python benchmarks/recurrent_drafts.py [--rounds 5] [--isq q8_0] [--tokens 160] [--layers 32]

The model has layers of Granite-4.0-H-350M, one of attention after seven of Mamba-2; the vocabulary,
the texts and the weights, with which its text is known, are those of `speculation.py`. The tokens
must be the same with and without drafts.

Then the two ways to go on after a refused draft: to keep the state after each draft and copy the
right one (what the engine does), or to keep only the state before the drafts and compute the
accepted ones a second time. The first costs a copy for each step, the second a token for each
accepted draft. Times are processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch
from safetensors.torch import save_file
from speculation import EOS, VOCAB, Cycle, prompts
from transformers import AutoConfig, AutoModelForCausalLM

from inferno import LLM, SamplingParams
from inferno.core.types import Copy

ZERO = ("o_proj.weight", "out_proj.weight", "output_linear.weight")
"""Matrices of zeros: their blocks add nothing to the residual stream, at full cost."""
CONFIG: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "attention_multiplier": 0.015625,
    "eos_token_id": EOS,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "mamba_d_conv": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 48,
    "max_position_embeddings": 32768,
    "num_attention_heads": 12,
    "num_experts_per_tok": 0,
    "num_key_value_heads": 4,
    "num_local_experts": 0,
    "position_embedding_type": "nope",
    "shared_intermediate_size": 2048,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
}


def write(folder: Path, cycle: Cycle, layers: int) -> str:
    """Write a checkpoint whose greedy text follows the cycle."""
    folder.mkdir()
    torch.manual_seed(0)
    types = ["attention" if i % 8 == 7 else "mamba" for i in range(layers)]
    config = {**CONFIG, "layer_types": types, "num_hidden_layers": layers}
    fields = {name: value for name, value in config.items() if name != "architectures"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
    tensors = {n: t.clone() for n, t in model.state_dict().items()}
    embedding = torch.randn(VOCAB, CONFIG["hidden_size"])
    tensors["model.embed_tokens.weight"] = embedding
    tensors["lm_head.weight"] = torch.zeros_like(embedding).index_add_(
        0, torch.tensor(cycle.following), embedding
    )
    save_file(
        {
            name: (tensor * 0 if name.endswith(ZERO) else tensor).bfloat16()
            for name, tensor in tensors.items()
        },
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--isq", help="quantize the model while loading")
    given = parser.parse_args()
    cycle = Cycle.of(0)
    params = SamplingParams(temperature=0, max_tokens=given.tokens, ignore_eos=True)
    options: dict[str, Any] = {"device": "cpu", "isq": given.isq, "max_model_len": 2048}
    options |= {"max_num_seqs": 8, "memory": "3GiB", "cache_policy": "none"}
    with tempfile.TemporaryDirectory() as work:
        model = write(Path(work) / "model", cycle, given.layers)
        engines = {
            "plain": LLM(model, **options),
            "ngram": LLM(model, speculative="ngram", **options),
        }
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for round in range(given.rounds + 1):
            for text, prompt in prompts(cycle, given.tokens).items():
                for name in list(engines)[:: 1 if round % 2 else -1]:
                    start = process_time()
                    [output] = engines[name].generate([prompt], params)
                    seconds = process_time() - start
                    expected = cycle.text(prompt[-1], given.tokens + 1)[1:]
                    assert list(output.outputs[0].token_ids) == expected, (name, text)
                    if round:  # the first warms up
                        times[text, name].append(seconds)
        print(f"{given.isq or 'bf16'}, processor time of plain decoding / with n-gram drafts\n")
        for text in prompts(cycle, given.tokens):
            pairs = list(zip(times[text, "plain"], times[text, "ngram"], strict=True))
            ratio = statistics.median(plain / drafts for plain, drafts in pairs)
            print(f"{text}: {ratio:.2f} ({min(times[text, 'plain']) / given.tokens * 1e3:.2f} ms)")
        compare(engines["ngram"], given.rounds)


def compare(engine: LLM, rounds: int) -> None:
    """Print what one copy of a state costs, and what a token in a step of several."""
    runner: Any = engine._engine._runner  # type: ignore[attr-defined]
    group = len(runner.plan.groups) - 1
    first = runner.plan.max_num_seqs + 1
    nbytes = runner.plan.groups[group].unit_bytes
    replays = runner.replays

    def step(size: int) -> Callable[[], object]:
        replay: Callable[[], object] = next(
            shape.captured.replay
            for (tokens, _, chain), shape in replays._shapes.items()
            if tokens == size and chain == (size > 1)
        )
        return replay

    work = {
        "copy of a state": lambda: runner.cache.copy([Copy(group, first, 0)]),
        "step of one token": step(1),
        "step of 1 + 3 tokens": step(4),
        "step of 1 + 8 tokens": step(9),
    }
    best = dict.fromkeys(work, float("inf"))
    with torch.inference_mode():
        for _ in range(4 * rounds):
            for name, each in work.items():
                start = process_time()
                for _ in range(4):
                    each()
                best[name] = min(best[name], (process_time() - start) / 4)
    print(f"\na state is {nbytes / 2**20:.1f} MiB")
    for name, seconds in best.items():
        print(f"{name}: {seconds * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
