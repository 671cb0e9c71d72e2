"""What ranks cost and give: decode steps of one process with all threads beside ranks with as
many in all, sums over the ranks by everything that computes them, and steps as messages. With
--stages, pipeline stages instead of ranks that share each layer; with --ep, ranks that have some
experts whole beside those; with --on-host N, one process instead of ranks, which keeps N experts of
each layer on the host: the same CPU.

    python benchmarks/ranks.py [MODEL] [--ranks 2 [--ep] | --stages 2 | --on-host 16]
        [--rounds 5] [--sequences 4] [--tokens 64]
        [--prompt 3] [--dtype bfloat16] [--isq q8_0]

MODEL may be one of `benchmarks/models.py`. All engines, in processes, are loaded before the first
round, and rounds take turns. On a machine that does other work, compare the medians, not the single
figures, and processor time rather than speed: two ranks wait for the slower one in every sum.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from models import SHAPES, make

from inferno.catalog import load_catalog
from inferno.contracts import COLLECTIVES, Capture, Communicator, Device, KernelNeed, RankPlace
from inferno.core.engine import Engine
from inferno.core.types import NewSequence, Slice, Step
from inferno.host import usable_cores
from inferno.nn.capture import CallCapture
from inferno.plan import Options, open_model
from inferno.process.ranks import messages
from inferno.process.ranks.engine import load_engine
from inferno.process.ranks.exchange import Build, Gloo
from inferno.process.ranks.wire import Wire, listener
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams

SIZES = (1, 1024), (1, 4096), (1, 8192), (4, 1024), (16, 1024), (16, 4096), (16, 8192), (64, 4096)
"""Of tensors that are summed, in bfloat16."""
EACH = 10
"""Sums in a step."""


def load(ref: str, ranks: int, threads: int, **options: Any) -> Engine:
    given = Options(tp=ranks, threads=threads, max_model_len=1024, **options)
    with open_model(ref, given) as opened:
        return load_engine(opened)


def decode(engine: Engine, sequences: int, tokens: int, prompt: int, turn: int) -> Costs:
    """Return what tokens of all sequences cost, and their prompts."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    for i in range(sequences):
        ids = tuple(3 + (i + 7 * n + 31 * turn) % 500 for n in range(prompt))  # not cached yet
        engine.submit(Request(id=str(i), token_ids=ids, params=params))
    used, drawn = processor_seconds(), 0
    while drawn < sequences:
        drawn += len(engine.step())
    begun, used_by_prompts, drawn = time.perf_counter(), processor_seconds() - used, 0
    while engine.busy:
        drawn += len(engine.step())
    seconds, used = time.perf_counter() - begun, processor_seconds() - used - used_by_prompts
    return Costs(drawn / seconds, used / drawn * 1e3, used_by_prompts / sequences / prompt * 1e3)


class Costs(NamedTuple):
    """What a round cost."""

    speed: float
    """Tokens per second."""
    token: float
    """Milliseconds of processor time, of all processes, for each token drawn."""
    prompt: float
    """And for each token of a prompt."""


def processor_seconds(process: int | str = "self") -> float:
    """Return the processor time of a process and of those that it has started."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    started = (f.read_text().split() for f in Path(f"/proc/{process}/task").glob("*/children"))
    below = sum(processor_seconds(each) for pids in started for each in pids)
    return ticks / os.sysconf("SC_CLK_TCK") + below


def microseconds(run: Callable[[], object], count: int = 200) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return median(times) * 1e6


def summing(name: str, folder: str, rank: int, ranks: int) -> list[float]:
    """Return the median microseconds of a sum of each size in a captured step, as one of the ranks
    computes them. `name` is the provider's, or gloo."""
    torch.set_num_threads(1)
    build, capture = by_name()[name]
    ours = build(RankPlace(rank=rank, ranks=ranks, folder=folder))
    if rank == 0:
        (Path(folder) / "ready").touch()
    while not (Path(folder) / "ready").exists():
        time.sleep(0.01)
    ours.connect()
    return [
        microseconds(capture(partial(sums, ours, torch.zeros(size).bfloat16())).replay, 40) / EACH
        for size in SIZES
    ]


def sums(ours: Communicator, x: torch.Tensor) -> torch.Tensor:
    for _ in range(EACH):
        x = ours.all_reduce(x)
    return x


def by_name() -> dict[str, tuple[Build, Capture]]:
    """Return what computes sums and what captures steps, by name."""
    need = KernelNeed(op=COLLECTIVES, dtype="bfloat16", device=Device("cpu"))
    backends: dict[str, tuple[Build, Capture]] = {"gloo": (Gloo, CallCapture())}
    offer, _ = load_catalog().kernel(need)
    if offer is not None and offer.item.capture is not None:
        backends[offer.item.name] = offer.item.ops[COLLECTIVES], offer.item.capture()
    return backends


def sum_costs(ranks: int) -> dict[str, list[float]]:
    """Return the time of a sum of each size, in processes, by what computes it."""
    costs, spawn = dict[str, list[float]](), multiprocessing.get_context("spawn")
    for name in by_name():
        with TemporaryDirectory() as folder, ProcessPoolExecutor(ranks, spawn) as pool:
            rest = [pool.submit(summing, name, folder, i, ranks) for i in range(ranks)]
            costs[name] = rest[0].result()
    return costs


def message_costs() -> dict[str, float]:
    """Return the time to encode and to decode a step of 256 sequences, and an admission of 8 000
    tokens, and the time until another process has decoded a step that this one encodes."""
    step = Step(slices=tuple(Slice(row, 1000 + row, 1, True) for row in range(256)))
    drawn = [[[50_000]] * 256]
    prompt = tuple(range(60_000, 68_000))
    request = Request(id="1", token_ids=prompt, params=SamplingParams())
    admission = Step(slices=(), new_sequences=(NewSequence(0, request, prompt),))
    costs = dict[str, float]()
    for name, given in (("256 sequences", step), ("8 000 tokens", admission)):
        body = messages.encode_step(given, drawn)
        costs[f"encode {name}"] = microseconds(partial(messages.encode_step, given, drawn))
        costs[f"decode {name}"] = microseconds(partial(messages.decode_step, body))
        costs[f"broadcast {name}"] = trip(partial(messages.encode_step, given, drawn))
    return costs


def trip(encode: Callable[[], bytes], count: int = 200) -> float:
    """Return the median microseconds from before a step is encoded until a rank that waits for it
    has decoded it. Both processes have one clock."""
    with TemporaryDirectory() as folder, listener(Path(folder) / "steps", 1) as listening:
        spawn = multiprocessing.get_context("spawn")
        follower = spawn.Process(target=follow, args=(folder, count))
        follower.start()
        wire, times = Wire(listening.accept()[0]), []
        for _ in range(count):
            time.sleep(0.002)  # it waits by then, as a rank does while rank 0 plans
            begun = time.perf_counter()
            wire.send(messages.STEP, encode())
            reply = wire.receive(60)
            assert reply is not None, "it answers at once"
            times.append(float(reply[1]) - begun)
        follower.join()
        wire.close()
    return median(times) * 1e6


def follow(folder: str, count: int) -> None:
    """Decode steps, and say when each was."""
    wire = Wire.to(Path(folder) / "steps")
    for _ in range(count):
        if (received := wire.receive(60)) is not None:
            messages.decode_step(received[1])
            wire.send(messages.STEP, repr(time.perf_counter()).encode())
    wire.close()


class Decoding:
    """An engine in a process of its own: threads are set for a whole process."""

    def __init__(self, given: Any, ranks: int, threads: int, **shape: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        one = given.device.partition(",")[0]
        device = given.device if ranks * shape.get("pp", 1) > 1 else one
        options = {"dtype": given.dtype, "isq": given.isq, "device": device, **shape}
        arguments = (theirs, given.model, ranks, threads, options)
        self.process = spawn.Process(target=decoding, args=arguments)
        self.process.start()
        theirs.close()
        self._pipe.recv()

    def costs(self, given: Any, turn: int) -> Costs:
        self._pipe.send((given.sequences, given.tokens, given.prompt, turn))
        reply: Costs = self._pipe.recv()
        return reply

    def close(self) -> None:
        self._pipe.close()
        self.process.join()


def decoding(pipe: Any, ref: str, ranks: int, threads: int, options: dict[str, Any]) -> None:
    """Decode as often as asked."""
    torch.set_num_threads(1)
    engine = load(ref, ranks, threads, **options)
    pipe.send(None)
    with suppress(EOFError):
        while True:
            pipe.send(decode(engine, *pipe.recv()))
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    for name, default in (("ranks", 2), ("rounds", 5), ("sequences", 4), ("tokens", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu", help="of ranks on GPUs: cuda, or cuda:0,cuda:1")
    parser.add_argument("--isq")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=3)
    parser.add_argument("--ep", action="store_true")
    parser.add_argument("--on-host", type=int, default=0)
    given: Any = parser.parse_args()
    if given.model in SHAPES:
        given.model = str(make(given.model, Path(".work")))
    ranks = given.ranks if given.stages == 1 and not given.on_host else 1
    for name, costs in sum_costs(ranks).items() if ranks > 1 else ():
        each = ", ".join(f"{list(s)} {cost:.0f}" for s, cost in zip(SIZES, costs, strict=True))
        print(f"sums by {name}, us: {each}", flush=True)
    cores, count = usable_cores(), ranks * given.stages
    threads = max(1, cores // count)
    what = f"{ranks} ranks" if ranks > 1 else f"{given.stages} stages"
    engines = {"one process": Decoding(given, 1, cores)}
    if on_host := given.on_host:
        what = f"{on_host} experts on the host"
        engines[what] = Decoding(given, 1, cores, experts_on_host=on_host)
    else:
        engines[what] = Decoding(given, ranks, threads, pp=given.stages)
    if given.ep:
        engines[f"{what} with whole experts"] = Decoding(given, ranks, threads, ep=True)
    rounds = list[list[Costs]]()
    for turn in range(given.rounds + 1):
        figures = [each.costs(given, turn) for each in engines.values()]
        if turn:  # the first one captures steps
            rounds.append(figures)
    for name, series in zip(engines, zip(*rounds, strict=True), strict=True):
        cost = Costs(*(median(column) for column in zip(*series, strict=True)))
        ratios = [
            Costs(*(b / a if a else 1.0 for a, b in zip(first[0], mine, strict=True)))
            for first, mine in zip(rounds, series, strict=True)
        ]
        ratio = Costs(*(median(column) for column in zip(*ratios, strict=True)))
        print(
            f"{name}: {cost.speed:.0f} tokens/s ({ratio.speed:.2f}); processor time "
            f"{cost.token:.2f} ms per token ({ratio.token:.2f}), {cost.prompt:.3f} ms per token "
            f"of a prompt ({ratio.prompt:.2f})"
        )
    for what, time_taken in message_costs().items():
        print(f"{what}: {time_taken:.0f} us")
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
