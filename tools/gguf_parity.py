"""Compares inferno's GGUF path with llama.cpp: `python tools/gguf_parity.py --llama PYTHON`.

PYTHON is an environment's with llama-cpp-python and gguf. Models: the demo model, and random Llamas
and Qwen3s. Each is stored in every type that llama.cpp quantizes to. Two comparisons:

- *same values*: llama.cpp computes with the file's values unpacked to F32 by itself, which is what
  inferno's torch route does with the blocks. Nothing may differ but the order of float32 sums;
- *as is*: llama.cpp computes with the file. It rounds what it multiplies matrices by (to 16 bits,
  or to blocks of int8), so greedy tokens may part, but only where two tokens are nearly as likely.

Then the demo model's perplexity on text that it was not trained on, by type. Exits with 1 if
anything else differs.

Suffixes: N generated tokens, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from inferno.catalog import load_catalog
from inferno.errors import InfernoError
from inferno.plan import Options, reopen, resolve
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.tiny import Toy, generate
from inferno.text.tokenizer import Tokenizer
from inferno.weights.loading import load_model

Array = np.ndarray[Any, Any]

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "plugins/models/inferno-demo/src/inferno_demo"
LLAMA = Path("~/.cache/inferno-bench/venvs/llama-cpp-python/bin/python").expanduser()
NATIVE = "inferno-cpu"

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "max_model_len": 640,
    "max_num_seqs": 8,
    "threads": 1,
}
NUM_TOKENS = 64
WINDOW = 512
"""Tokens that the demo model was trained on at once; the perplexity's windows, each on its own."""
NEAR = {"F32": 1e-3, "F16": 1e-2, "BF16": 5e-2}
NEAR_QUANTIZED = 0.25
"""How far apart two logits may be and still be a near-tie, in standard deviations of the logits:
about as much as rounding the activations moves them. The two engines' logits may differ by twice
that."""

TEXTS = (
    "What does math.gcd do?",
    "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n",
    "The quick brown fox jumps over 13 lazy dogs.",
)
"""What the models go on from."""
ODD_TEXTS = (
    "",
    " ",
    "  two",
    "three   ",
    "\t\ttabs\t",
    "\n\n\n",
    "a\r\nb\r\n\r\n c",
    "12345 3.14 1,000 ½ ²",
    "I'LL we've it's 'tis",
    "Ünïcödé straße ΑΒΓ жизнь",
    "汉字と かな 한국어",
    "🙂\U0001f469\u200d\U0001f467🇺🇳 x",
    "e\u0301 n\u0303 \u0928\u092e",
    "\u0645\u0631\u062d\u0628\u0627 123",
    "\u00a0no\u2003break\u200b",
    "x\x00y\x7f",
    "!!!??? ...,;:--__//\\ [](){}<>",
    "[INST] <s> hi </s> <unk> <0x0A>",
    "<|im_start|><|im_end|> <|endoftext|>text<think>",
    "▁under ▁ score",
    "aHTTPResponse",
    "a" * 100,
)
"""What tokenizers stumble over."""


class Refused(SystemExit):
    """llama.cpp does not do what it was asked."""


class LlamaCpp:
    """llama.cpp, or what is its own, in a process of its own: a script that answers requests."""

    def __init__(self, python: Path, script: str = "gguf_export.py", *arguments: str) -> None:
        command = [str(python), str(Path(__file__).with_name(script)), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Raises Refused with llama.cpp's complaint."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        reply: dict[str, Any] = (
            json.loads(line) if line else {"error": "llama.cpp's process has ended"}
        )
        if "error" in reply:
            about = ", ".join(
                f"{name}={value}" for name, value in arguments.items() if isinstance(value, str)
            )
            raise Refused(f"{do} {about}: {reply['error']}")
        return reply

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


@dataclass
class Answer:
    """What an engine makes of a file."""

    ids: list[list[int]]
    """Of each text."""
    token_ids: list[list[int]]
    """After each prompt."""
    logits: list[Array]
    """(N, V) for each prompt: what its tokens were chosen from."""
    nats: float
    """Of the held-out text, per token."""


@dataclass
class Parting:
    """A prompt's first difference: where, and each engine's margin between the two tokens, in its
    logits' deviations."""

    prompt: int
    place: int
    margins: tuple[float, float]

    def __str__(self) -> str:
        ours, theirs = self.margins
        return f"prompt {self.prompt} token {self.place}: {ours:.2g} / {theirs:.2g}"


@dataclass
class Comparison:
    equal: int
    """Tokens before the first difference, of all prompts."""
    total: int
    furthest: float
    """Largest difference between two logits where the contexts were equal, in deviations."""
    partings: list[Parting]
    near: float

    @property
    def right(self) -> bool:
        return self.furthest <= 2 * self.near and all(
            max(parting.margins) <= self.near for parting in self.partings
        )

    def cells(self) -> str:
        verdict = "equal" if self.right else "DIFFERENT"
        if self.partings:
            widest = max(self.partings, key=lambda parting: max(parting.margins))
            verdict = (
                f"{'near-ties' if self.right else 'DIFFERENT'}: {len(self.partings)}, "
                f"widest {widest}"
            )
        return f"{self.equal}/{self.total} | {self.furthest:.1e} | {verdict}"


def compare(ours: Answer, theirs: Answer, near: float) -> Comparison:
    result = Comparison(0, sum(map(len, ours.token_ids)), 0.0, [], near)
    for number, (a, b) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=True)):
        place = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
        result.equal += place
        ours_NV, theirs_NV = ours.logits[number][: place + 1], theirs.logits[number][: place + 1]
        furthest_N = np.abs(ours_NV - theirs_NV).max(-1) / theirs_NV.std(-1)
        result.furthest = max(result.furthest, float(furthest_N.max()))
        if place < len(a):
            x, y = a[place], b[place]
            margins = (
                float((ours_NV[place, x] - ours_NV[place, y]) / ours_NV[place].std()),
                float((theirs_NV[place, y] - theirs_NV[place, x]) / theirs_NV[place].std()),
            )
            result.partings.append(Parting(number, place, margins))
    return result


@dataclass
class Task:
    """What both engines are asked about one file."""

    texts: Sequence[str]
    prompts: list[list[int]] = field(default_factory=list)
    windows: list[list[int]] = field(default_factory=list)

    @property
    def num_scored(self) -> int:
        return sum(len(window) - 1 for window in self.windows)


def theirs(
    llama: LlamaCpp,
    path: str,
    task: Task,
    count: int = NUM_TOKENS,
    length: int = OPTIONS["max_model_len"],
) -> Answer:
    logits = Path(path).with_suffix(".npy")
    reply = llama.ask(
        "run",
        path=path,
        texts=task.texts,
        prompts=task.prompts,
        count=count,
        windows=task.windows,
        logits=str(logits),
        length=length,
    )
    rows = np.load(logits)
    logits.unlink()
    return Answer(
        reply["ids"], reply["token_ids"], list(rows), reply["nats"] / max(1, task.num_scored)
    )


def ours(path: str, task: Task, *, native: bool = False) -> Answer:
    """By torch's operators alone, or with the native kernels."""
    unwanted = (
        [] if native else [p.name for p in load_catalog().plugins if p.distribution == NATIVE]
    )
    plan = resolve(path, Options(**{**OPTIONS, "disable": unwanted}))
    if native and not plan.kernels:
        raise SystemExit(
            f"--kernels: no plugin computes this file with native kernels; install {NATIVE}"
        )
    with reopen(plan) as opened:
        tokenizer = Tokenizer.from_assets(opened.text(), plan.config)
        toy = Toy(plan, load_model(opened))
    assert tokenizer is not None
    outcomes = generate(toy, task.prompts, NUM_TOKENS) if task.prompts else []
    return Answer(
        [tokenizer.encode(text) for text in task.texts],
        [list(outcome.token_ids) for outcome in outcomes],
        [outcome.logits_NV.numpy() for outcome in outcomes],
        nats(toy, task),
    )


def nats(toy: Toy, task: Task) -> float:
    """Per token, over every token but each window's first."""
    engine = toy.engine()
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    for i, window in enumerate(task.windows):
        engine.submit(Request(id=str(i), token_ids=tuple(window), params=params))
    total = 0.0
    while engine.busy:
        for token in engine.step():
            total -= sum(entry.logprob for entry in token.prompt_logprobs or () if entry)
    return total / max(1, task.num_scored)


def held_out_windows(ids: list[int], count: int) -> list[list[int]]:
    """Windows of the held-out text, evenly spread; all of them when there are no more."""
    starts = list(range(0, len(ids) - 1, WINDOW))
    chosen = np.unique(np.linspace(0, len(starts) - 1, min(count, len(starts))).round().astype(int))
    return [ids[starts[i] : starts[i] + WINDOW + 1] for i in chosen.tolist()]


# The run
# ----------------------------------------------------------------------


@dataclass
class Row:
    """One model in one type."""

    model: str
    kind: str
    bytes_per_weight: float
    matrices: dict[str, int]
    miscut: list[str]
    """Texts that the two tokenizers cut differently."""
    values: Comparison
    """With llama.cpp and the same values."""
    as_is: Comparison
    """With llama.cpp and the file."""
    kernels: Comparison | None
    """With inferno's native kernels."""
    nats: tuple[float, float, float, float | None]
    """inferno's, llama.cpp's with the same values, llama.cpp's as is, inferno's with native
    kernels."""

    @property
    def right(self) -> bool:
        return not self.miscut and all(comparison.right for comparison in self.comparisons)

    @property
    def comparisons(self) -> list[Comparison]:
        return [self.values, self.as_is, *([self.kernels] if self.kernels else [])]


def measure(
    llama: LlamaCpp, model: str, kind: str, folder: Path, task: Task, *, native: bool
) -> Row:
    file = llama.ask("make", model=model, kind=kind, demo=str(DEMO / "model"), folder=str(folder))
    same = file["values"] == file["path"]
    as_is = theirs(llama, file["path"], task)
    values = as_is if same else theirs(llama, file["values"], task)
    mine = ours(file["path"], task)
    by_kernels = ours(file["path"], task, native=True) if native else None
    near = NEAR.get(kind, NEAR_QUANTIZED)
    kernels = None if by_kernels is None else compare(mine, by_kernels, near)
    row = Row(
        model,
        kind,
        file["bytes_per_weight"],
        file["matrices"],
        [text for text, a, b in zip(task.texts, mine.ids, as_is.ids, strict=True) if a != b],
        compare(mine, values, NEAR["F32"]),
        compare(mine, as_is, near),
        kernels,
        (mine.nats, values.nats, as_is.nats, None if by_kernels is None else by_kernels.nats),
    )
    for path in {file["path"], file["values"]}:
        if not (kind == "F32" and path == file["path"]):  # what the other types are made of
            Path(path).unlink()
    return row


def run(args: argparse.Namespace, folder: Path) -> Iterator[Row]:
    llama = LlamaCpp(args.llama)
    held_out = (DEMO / "heldout.txt").read_text("utf-8")
    known = llama.ask("kinds")
    for model in args.models or known["models"]:
        llama.ask("make", model=model, kind="F32", demo=str(DEMO / "model"), folder=str(folder))
        task = Task([*TEXTS, *ODD_TEXTS, held_out])
        ids = theirs(llama, str(folder / f"{model}-F32.gguf"), Task(task.texts, [[1]])).ids
        rng = np.random.default_rng(0)
        task.prompts = [*ids[: len(TEXTS)], *(rng.integers(0, 1024, n).tolist() for n in (1, 70))]
        task.windows = held_out_windows(ids[-1], args.windows) if model == "demo" else []
        for kind in args.kinds or known["kinds"]:
            row = measure(llama, model, kind, folder, task, native=args.kernels)
            print(
                f"{model} {kind}: {'as it should be' if row.right else 'DIFFERENT'}",
                file=sys.stderr,
                flush=True,
            )
            yield row
    llama.close()


def report(rows: Sequence[Row]) -> Iterator[str]:
    against = ["llama.cpp, same values", "llama.cpp", "inferno's native kernels"][
        : 3 if rows[0].kernels else 2
    ]
    yield (
        "inferno's greedy tokens that are equal, until the first difference of each prompt. "
        "Differences between logits, and"
    )
    yield (
        "both margins at first differences (inferno's, then the other's), in standard "
        "deviations of the logits.\n"
    )
    yield (
        "| model | type | "
        + " | ".join(f"{name} | logits | first differences" for name in against)
        + " |"
    )
    yield "|---|---|" + "---|---|---|" * len(against)
    for row in rows:
        yield (
            f"| {row.model} | {row.kind} | "
            + " | ".join(comparison.cells() for comparison in row.comparisons)
            + " |"
        )
    for row in rows:
        for text in row.miscut:
            yield f"\n{row.model} {row.kind}: the tokenizers cut {text[:60]!r} differently."
    scored = [row for row in rows if row.model == "demo"]
    if scored:
        yield "\nThe demo model's held-out text, nats per token (perplexity).\n"
        yield (
            "| type | matrices | bytes/weight | inferno | llama.cpp, same values | "
            "llama.cpp | inferno, native kernels |"
        )
        yield "|---|---|---|---|---|---|---|"
    for row in scored:
        matrices = " ".join(f"{name} x{count}" for name, count in row.matrices.items())
        cells = " | ".join("-" if n is None else f"{n:.4f} ({math.exp(n):.2f})" for n in row.nats)
        yield f"| {row.kind} | {matrices} | {row.bytes_per_weight:.3f} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--llama",
        type=Path,
        default=LLAMA,
        help="python of an environment with llama-cpp-python and gguf",
    )
    parser.add_argument("--models", nargs="+", help="only these")
    parser.add_argument("--kinds", nargs="+", help="only these types")
    parser.add_argument("--windows", type=int, default=8, help=f"of {WINDOW} held-out tokens")
    parser.add_argument("--kernels", action="store_true", help=f"{NATIVE} too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(run(args, Path(folder)))
    print("\n".join(report(rows)))
    if not all(row.right for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    try:
        main()
    except InfernoError as error:
        raise SystemExit(str(error)) from error
