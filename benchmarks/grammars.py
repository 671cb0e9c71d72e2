"""Measures grammar compilers side by side: the time to compile a JSON schema, and to compute masks.

    python benchmarks/grammars.py [--xgrammar PYTHON] [--rounds 5]

PYTHON is the interpreter of an environment that has xgrammar. Each library runs in a process of its
own, and they take turns, round by round, on the same vocabulary of 131 072 tokens and the same
schemas. What counts is the ratio: a loaded machine slows both.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

VOCAB = 131_072
FIELDS = {"small": 3, "medium": 20, "large": 60}


def vocabulary() -> list[bytes]:
    """Bytes, then the most frequent words and pieces of words of the standard library's sources."""
    counts: Counter[str] = Counter()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        words = re.findall(r" ?[A-Za-z_]+|[ \n]+|[^A-Za-z_\s]+", path.read_text("utf-8", "replace"))
        counts.update(
            w[i:j] for w in set(words) for i in range(2) for j in range(i + 2, len(w) + 1)
        )
    tokens = [bytes([i]) for i in range(256)]
    tokens += [w.encode() for w, _ in counts.most_common(VOCAB) if len(w.encode()) > 1]
    fill = random.Random(0)
    known = set(tokens)
    while len(known) < VOCAB - 1:
        known.add("".join(fill.choices("abcdefghijklmnopqrstuvwxyz ", k=7)).encode())
    tokens += sorted(known - set(tokens))
    return [*tokens[: VOCAB - 1], b"<|end|>"]


def schema(count: int) -> dict[str, Any]:
    """Return a schema of that many properties, every fifth of them an object."""
    kinds: list[dict[str, Any]] = [
        {"type": "string", "maxLength": 40},
        {"type": "integer"},
        {"enum": ["red", "green", "blue"]},
        {"type": "array", "items": {"type": "number"}, "maxItems": 4},
        {
            "type": "object",
            "properties": {"x": {"type": "string"}, "y": {"type": "boolean"}},
            "required": ["x", "y"],
            "additionalProperties": False,
        },
    ]
    fields = {f"field_{i}": kinds[i % len(kinds)] for i in range(count)}
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def instance(count: int) -> str:
    values: list[Any] = ["a reader of files", 12345, "green", [1.5, 2, 3], {"x": "path", "y": True}]
    return json.dumps({f"field_{i}": values[i % len(values)] for i in range(count)})


class Greedy:
    """Tokenizes greedily, the longest token first."""

    def __init__(self, vocab: Sequence[bytes]) -> None:
        self._ids = {token: i for i, token in reversed(list(enumerate(vocab)))}

    def encode(self, text: bytes) -> Iterator[int]:
        while text:
            length = next(n for n in range(min(24, len(text)), 0, -1) if text[:n] in self._ids)
            yield self._ids[text[:length]]
            text = text[length:]


Following = tuple[Callable[[], None], Callable[[int], object]]
"""Computes the next mask, and accepts a token."""


def llguidance_library(vocab: list[bytes]) -> Callable[[str], Following]:
    import llguidance
    import llguidance.numpy as masks

    greedy = Greedy(vocab)

    class Tokens:
        eos_token_id, bos_token_id, tokens = VOCAB - 1, None, vocab
        special_token_ids = (VOCAB - 1,)

        def __call__(self, text: Any) -> list[int]:
            return list(greedy.encode(text.encode() if isinstance(text, str) else text))

    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokens()))
    words = masks.allocate_token_bitmask(1, VOCAB)

    def compiled(text: str) -> Following:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(text)
        matcher = llguidance.LLMatcher(tokenizer, grammar)
        assert not matcher.is_error(), matcher.get_error()
        return lambda: masks.fill_next_token_bitmask(matcher, words), matcher.consume_token

    return compiled


def xgrammar_library(vocab: list[bytes]) -> Callable[[str], Following]:
    import xgrammar  # type: ignore[import-not-found]  # in an environment of its own

    info = xgrammar.TokenizerInfo(vocab, stop_token_ids=[VOCAB - 1])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    words = xgrammar.allocate_token_bitmask(1, VOCAB)

    def compiled(text: str) -> Following:
        matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(text))

        def fill() -> None:
            matcher.fill_next_token_bitmask(words, 0)

        return fill, matcher.accept_token

    return compiled


LIBRARIES = {"llguidance": llguidance_library, "xgrammar": xgrammar_library}


def work(library: str) -> None:
    """Answer each schema's size with the times of one run, in milliseconds."""
    vocab = vocabulary()
    greedy = Greedy(vocab)
    start = time.perf_counter()
    compiled = LIBRARIES[library](vocab)
    print(json.dumps({"build": 1e3 * (time.perf_counter() - start)}), flush=True)
    for line in sys.stdin:
        count = FIELDS[line.strip()]
        text, ids = json.dumps(schema(count)), list(greedy.encode(instance(count).encode()))
        start = time.perf_counter()
        fill, accept = compiled(text)
        compile_ms = 1e3 * (time.perf_counter() - start)
        times = []
        for token_id in ids:
            start = time.perf_counter()
            fill()
            times.append(1e3 * (time.perf_counter() - start))
            assert accept(token_id), f"{library} refuses token {vocab[token_id]!r}"
        print(json.dumps({"compile": compile_ms, "masks": times}), flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--xgrammar", metavar="PYTHON")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--worker", choices=LIBRARIES, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.worker:
        work(given.worker)
        return
    pythons = {"llguidance": sys.executable} | (
        {"xgrammar": given.xgrammar} if given.xgrammar else {}
    )
    workers = {
        name: subprocess.Popen(
            [python, __file__, "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, python in pythons.items()
    }
    builds = {name: _read(worker)["build"] for name, worker in workers.items()}
    print("| library | vocabulary, ms | schema | compile, ms | mask p50, ms | mask p95, ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size in FIELDS:
        runs: dict[str, list[Any]] = {name: [] for name in workers}
        for _ in range(given.rounds):
            for name, worker in workers.items():
                assert worker.stdin is not None, "it is a pipe"
                worker.stdin.write(f"{size}\n")
                worker.stdin.flush()
                runs[name].append(_read(worker))
        for name, samples in runs.items():
            masks = sorted(t for run in samples for t in run["masks"])
            p50, p95 = masks[len(masks) // 2], masks[len(masks) * 95 // 100]
            compiled = statistics.median(run["compile"] for run in samples)
            print(
                f"| {name} | {builds[name]:.0f} | {size} | {compiled:.2f} | {p50:.3f} | {p95:.3f} |"
            )
    for worker in workers.values():
        assert worker.stdin is not None, "it is a pipe"
        worker.stdin.close()
        worker.wait()


def _read(worker: subprocess.Popen[str]) -> Any:
    assert worker.stdout is not None, "it is a pipe"
    return json.loads(worker.stdout.readline())


if __name__ == "__main__":
    main()
