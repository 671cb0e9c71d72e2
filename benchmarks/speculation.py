"""Measure speculative decoding beside plain decoding, in turns.

    python benchmarks/speculation.py [--rounds 5] [--isq q8_0] [--tokens 160]

The model has the layers of Qwen3-0.6B, a vocabulary of 8192 tokens, and weights that make its text
known: attention and MLP add nothing to the residual stream, and the head maps each token to the
next one of a cycle through the vocabulary. It costs what a model of its size costs. The draft model
has two of the 28 layers, a tenth of the weights. Three kinds of text:

repeats     what follows is in the prompt: an edited file
new         what follows is new, and no end of it occurs before
misleading  what follows is new; every pair of its tokens occurs in the prompt, followed by another

Proposers: n-gram lookup; a draft model that is right for 8 of 10 tokens; one that never is. Each
engine is loaded once, in this process. The tokens must be the same with and without drafts.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

import torch
from attrs import evolve, frozen
from models import SHAPES, Shape
from safetensors.torch import save_file

from inferno import LLM, SamplingParams

VOCAB, FIRST, EOS = 8192, 256, 8191
"""Tokens before the first are single bytes in the models of `models.py`."""
SHAPE = evolve(SHAPES["qwen3-0.6b"], vocab_size=VOCAB)
DRAFT_LAYERS = 2
ZERO = ("o_proj", "down_proj")
"""Matrices of zeros: their blocks add nothing to the residual stream, at full cost."""


@frozen
class Cycle:
    """The order in which the model's text goes through the vocabulary."""

    following: Sequence[int]

    @classmethod
    def of(cls, seed: int) -> Cycle:
        order = list(range(FIRST, EOS))
        random.Random(seed).shuffle(order)
        following = list(range(VOCAB))  # tokens outside of it repeat themselves
        for token, after in zip(order, [*order[1:], order[0]], strict=True):
            following[token] = after
        return cls(following)

    def text(self, start: int, count: int) -> list[int]:
        tokens = [start]
        while len(tokens) < count:
            tokens.append(self.following[tokens[-1]])
        return tokens

    def with_errors(self, share: float) -> Cycle:
        """Another map, which is wrong for this share of the tokens."""
        draw, following = random.Random(1), list(self.following)
        for token in draw.sample(range(FIRST, EOS), int(share * (EOS - FIRST))):
            following[token] = max(FIRST, (following[token] + 1) % EOS)
        return Cycle(following)


def write(folder: Path, shape: Shape, cycle: Cycle) -> str:
    """Write a checkpoint whose greedy text follows the cycle."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCAB, shape.hidden_size, generator=generator)
    head = torch.zeros_like(embedding).index_add_(0, torch.tensor(cycle.following), embedding)
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    for name, size in shape.matrices():
        if name not in tensors:
            weight = torch.randn(size, generator=generator) * 0.02
            tensors[name] = weight * 0 if any(part in name for part in ZERO) else weight
    tensors |= {name: torch.ones(size) for name, size in shape.norms()}
    save_file(
        {name: tensor.bfloat16() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = {**shape.config(), "tie_word_embeddings": False, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def prompts(cycle: Cycle, tokens: int) -> Mapping[str, list[int]]:
    draw = random.Random(2)
    known = cycle.text(FIRST + 7, tokens + 40)
    coming = cycle.text(known[19], tokens + 20)
    misleading = [
        token
        for a, b in zip(coming, coming[1:], strict=False)
        for token in (a, b, draw.randrange(FIRST, EOS))
    ]
    return {
        "repeats": [*known, *known[:20]],
        "new": cycle.text(FIRST + 99, 40),
        "misleading": [*misleading, *known[:20]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--isq", help="quantize the model while loading")
    given = parser.parse_args()
    cycle = Cycle.of(0)
    texts = prompts(cycle, given.tokens)
    params = SamplingParams(temperature=0, max_tokens=given.tokens, ignore_eos=True)
    with tempfile.TemporaryDirectory() as work:
        model = write(Path(work) / "model", SHAPE, cycle)
        small = evolve(SHAPE, num_hidden_layers=DRAFT_LAYERS)
        drafts = {
            "ngram": "ngram",
            "draft 80 %": write(Path(work) / "good", small, cycle.with_errors(0.2)),
            "draft 0 %": write(Path(work) / "bad", small, cycle.with_errors(1.0)),
        }
        options = {
            "device": "cpu",
            "isq": given.isq,
            "max_model_len": 2048,
            "max_num_seqs": 8,
            "memory": "3GiB",
            "cache_policy": "none",
        }
        engines = {"plain": LLM(model, **options)}
        engines |= {name: LLM(model, speculative=ref, **options) for name, ref in drafts.items()}
        speeds: dict[tuple[str, str], list[float]] = defaultdict(list)
        for round in range(given.rounds + 1):
            names = list(engines)
            for text, prompt in texts.items():
                for name in names[round % len(names) :] + names[: round % len(names)]:
                    speed, token_ids = timed(engines[name], prompt, params)
                    assert token_ids == cycle.text(prompt[-1], given.tokens + 1)[1:], (name, text)
                    if round:  # the first warms up
                        speeds[text, name].append(speed)
    print(
        f"tokens/s of one stream, {given.isq or 'bf16'}, {torch.get_num_threads()} threads, ",
        end="",
    )
    print(f"medians of {given.rounds} rounds (median of the paired ratios to plain)\n")
    print(f"| text | {' | '.join(engines)} |\n|{'---|' * (len(engines) + 1)}")
    for text in texts:
        cells = []
        for name in engines:
            pairs = zip(speeds[text, name], speeds[text, "plain"], strict=True)
            ratio = statistics.median(ours / plain for ours, plain in pairs)
            cells.append(f"{statistics.median(speeds[text, name]):.1f} ({ratio:.2f})")
        print(f"| {text} | {' | '.join(cells)} |")


def timed(engine: LLM, prompt: list[int], params: SamplingParams) -> tuple[float, list[int]]:
    """Tokens per second after the first, and the tokens."""
    times = []
    ids: list[int] = []
    for delta in engine.stream(prompt, params):
        times += [perf_counter()] * len(delta.token_ids)
        ids += delta.token_ids
    return (len(times) - times.count(times[0])) / (times[-1] - times[0]), ids


if __name__ == "__main__":
    main()
