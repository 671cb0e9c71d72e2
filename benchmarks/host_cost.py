"""What a decode step costs the host besides the model: plan, build the batch, commit. No model
runs; tokens are made up.

    python benchmarks/host_cost.py [--sequences 64 256] [--context 2000] [--steps 400]
        [--repeats 3] [--aligned] [--queue auto]

`plan` and `commit` are the scheduler's, with the default prefix cache. `update` takes a step's news
into the resident tables, `lay out` makes arrays of the step, `append` writes the drawn tokens back.
All sequences are decoding and none ends; their contexts differ by up to a block, so that a
sixteenth of them fills one in each step, as in real traffic. `--aligned` makes them equal instead:
nothing is new in fifteen steps, everything in the sixteenth, which the column `worst` then shows.
The queue is the default of what is installed, or another by name.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

from inferno.builtin.lru import LRUPrefixCache
from inferno.catalog import load_catalog
from inferno.core.kvcache import CacheGroups
from inferno.core.runner import Tables
from inferno.core.schedule.scheduler import Scheduler
from inferno.core.types import Sampled
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams

BLOCK_SIZE = 16
PARTS = ("plan", "update", "lay out", "append", "commit")
WARM_UP = 32
LIMIT_MS = 1.0
"""For a whole step at 256 sequences."""


class Loop:
    """The engine's loop around a model that takes no time."""

    def __init__(
        self, num_sequences: int, context: int, num_steps: int, *, aligned: bool, queue: str
    ) -> None:
        longest = context + num_steps + 2 * BLOCK_SIZE
        num_blocks = num_sequences * -(-longest // BLOCK_SIZE)
        self._scheduler = Scheduler(
            CacheGroups(num_blocks, BLOCK_SIZE, LRUPrefixCache(num_blocks)),
            max_model_len=longest,
            max_num_seqs=num_sequences,
            max_num_batched_tokens=num_sequences
            * (context + BLOCK_SIZE),  # all prompts in the first step
            queue=load_catalog().queue_policy(queue).item.build,
        )
        self._tables = Tables(num_sequences, longest, BLOCK_SIZE)
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        for i in range(num_sequences):
            length = context + (0 if aligned else i % BLOCK_SIZE)
            prompt = tuple((i * 7919 + place) % 30_000 for place in range(length))
            self._scheduler.add(Request(id=f"request-{i}", token_ids=prompt, params=params))

    def step(self) -> list[float]:
        """One step; the milliseconds of each part."""
        start = perf_counter()
        step = self._scheduler.plan()
        planned = perf_counter()
        self._tables.update(step)
        updated = perf_counter()
        layout = self._tables.lay_out(step)
        laid_out = perf_counter()
        drawn = list(range(1000, 1000 + len(layout.sampling_rows)))  # the model
        computed = perf_counter()
        self._tables.append(layout, drawn)
        appended = perf_counter()
        tokens = self._scheduler.commit(step, Sampled(drawn))
        committed = perf_counter()
        assert len(tokens) == len(drawn), "every slice samples"
        pairs = (
            (start, planned),
            (planned, updated),
            (updated, laid_out),
            (computed, appended),
            (appended, committed),
        )
        return [(end - begin) * 1000 for begin, end in pairs]


def measure(
    num_sequences: int, context: int, num_steps: int, *, aligned: bool, queue: str = "auto"
) -> list[list[float]]:
    """The parts' milliseconds, step by step."""
    loop = Loop(num_sequences, context, num_steps + WARM_UP + 1, aligned=aligned, queue=queue)
    for _ in range(WARM_UP + 1):  # the first computes the prompts
        loop.step()
    return [loop.step() for _ in range(num_steps)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--sequences", type=int, nargs="+", default=[64, 256], metavar="N", help="running at once"
    )
    parser.add_argument(
        "--context", type=int, default=2000, metavar="N", help="tokens known of each at the start"
    )
    parser.add_argument(
        "--steps", type=int, default=400, metavar="N", help="measured in each repeat"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="the best median is shown"
    )
    parser.add_argument("--aligned", action="store_true", help="contexts of equal length")
    parser.add_argument("--queue", default="auto", metavar="NAME", help="queue policy")
    options = parser.parse_args()
    print(
        f"Median ms per step, contexts of {options.context} tokens, the best of "
        f"{options.repeats} repeats\n"
    )
    print("| sequences | " + " | ".join(PARTS) + " | **step** | 90 % | worst |")
    print("|---" * (len(PARTS) + 4) + "|")
    for num_sequences in options.sequences:
        repeats = [
            measure(
                num_sequences,
                options.context,
                options.steps,
                aligned=options.aligned,
                queue=options.queue,
            )
            for _ in range(options.repeats)
        ]
        steps = min(repeats, key=lambda steps: statistics.median(map(sum, steps)))
        parts = [statistics.median(column) for column in zip(*steps, strict=True)]
        sums = sorted(map(sum, steps))
        shown = [*parts, statistics.median(sums), sums[int(0.9 * len(sums))], sums[-1]]
        print(f"| {num_sequences} | " + " | ".join(f"{value:.3f}" for value in shown) + " |")


if __name__ == "__main__":
    main()
