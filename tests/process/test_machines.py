"""Two machines: network namespaces joined by a cable, each with its own processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.process.toy_mixture import write_mixture
from tests.seeing_model import END, START, write_seeing_model
from tests.seeing_model import IMAGE as PAD

from inferno.errors import EngineDeadError
from inferno.images.mediums import IMAGE
from inferno.plan import Options, Plan, resolve
from inferno.process import launch
from inferno.process.client import EngineClient
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import picture_file

pytest.importorskip("inferno_demo")
pytestmark = pytest.mark.slow

FIRST, OTHER = "10.231.7.1", "10.231.7.2"
PORT = 29_411
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "max_model_len": 2048,
    "threads": 1,
}


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


class Cable:
    """Two network namespaces, and the link between them."""

    def __init__(self) -> None:
        self.spaces = [f"inferno{os.getpid()}{end}" for end in "ab"]
        self.ends = [f"inf{os.getpid()}{end}"[-15:] for end in "ab"]

    def lay(self) -> str:
        """Return why that is not possible here; an empty string if it was."""
        for space in self.spaces:
            if (done := ip("netns", "add", space)).returncode:
                return done.stderr.strip() or "ip netns fails"
        if (
            done := ip("link", "add", self.ends[0], "type", "veth", "peer", self.ends[1])
        ).returncode:
            return done.stderr.strip() or "veth is missing"
        for space, end, address in zip(self.spaces, self.ends, (FIRST, OTHER), strict=True):
            ip("link", "set", end, "netns", space)
            ip("-n", space, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", space, "link", "set", end, "up")
            ip("-n", space, "link", "set", "lo", "up")
        return ""

    def within(self, machine: int) -> list[str]:
        """Return the words by which a command runs on a machine."""
        return ["ip", "netns", "exec", self.spaces[machine]]

    def pull(self) -> None:
        """Pull the cable out."""
        ip("-n", self.spaces[1], "link", "set", self.ends[1], "down")

    def plug(self) -> None:
        ip("-n", self.spaces[1], "link", "set", self.ends[1], "up")

    def remove(self) -> None:
        for space in self.spaces:
            ip("netns", "del", space)


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    if shutil.which("ip") is None or not sys.platform.startswith("linux"):
        pytest.skip("needs ip netns")
    laid = Cable()
    try:
        if reason := laid.lay():
            pytest.skip(f"no right to make network namespaces: {reason}")
        yield laid
    finally:
        laid.remove()


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("ranks") / "token"
    file.write_text("a token of the machines\n")
    return file


@pytest.fixture(scope="module")
def plan(token_file: Path) -> Plan:
    joined: dict[str, Any] = {"rank_host": FIRST, "rank_port": PORT}
    joined["rank_token_file"] = str(token_file)
    return resolve("demo", Options(tp=2, nodes=2, **joined, **OPTIONS))


@contextmanager
def other_machine(cable: Cable, token_file: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `inferno rank` on the other machine."""
    command = [sys.executable, "-m", "inferno", "rank", "--join", f"{FIRST}:{PORT}"]
    process = subprocess.Popen(
        [*cable.within(1), *command, "--rank-token-file", str(token_file)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def client(cable: Cable, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> EngineClient:
    """An engine on the first machine: only its process is in the namespace."""
    monkeypatch.setattr(launch, "_COMMAND", (*cable.within(0), *launch._COMMAND))
    return EngineClient(plan)


GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=30, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=1900, ignore_eos=True)


async def ask(
    client: EngineClient,
    params: SamplingParams,
    after: Callable[[], object] | None = None,
) -> list[int | None]:
    """Return an answer's tokens. `after` is called in its middle."""
    name, ids = f"{time.monotonic()}", list[int | None]()
    async for tokens in client.submit(Request(id=name, token_ids=(207, 932), params=params)):
        ids += [token.token_id for token in tokens]
        if after is not None and len(ids) > 10:
            after()
            after = None
    return ids


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """The ids of the ranks' processes on the other machine."""
    ids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == process.pid and fields[0] != "Z":
                ids.append(int(stat.parent.name))
    return ids


@pytest.fixture(scope="module")
def alone() -> list[list[int | None]]:
    """The greedy and the seeded answer of one process."""

    async def run() -> list[list[int | None]]:
        client = EngineClient(resolve("demo", Options(**OPTIONS)))
        await client.start()
        try:
            return [await ask(client, params) for params in (GREEDY, SEEDED)]
        finally:
            await client.close()

    return asyncio.run(run())


async def told_after(client: EngineClient, harm: Callable[[], object], match: str) -> float:
    """Return the seconds until an answer was told of a harm in its middle."""
    done = list[float]()

    def harmed() -> None:
        harm()
        done.append(time.monotonic())

    with pytest.raises(EngineDeadError, match=match):
        await ask(client, LONG, harmed)
    return time.monotonic() - done[0]


def test_tokens_are_those_of_one_process_and_a_killed_rank_is_told_within_a_second(
    cable: Cable, client: EngineClient, token_file: Path, alone: list[list[int | None]]
) -> None:
    async def run(other: subprocess.Popen[str]) -> None:
        await client.start()
        try:
            assert [await ask(client, params) for params in (GREEDY, SEEDED)] == alone
            for _ in range(2):
                [rank] = ranks_of(other)
                kill = partial(os.kill, rank, signal.SIGKILL)
                seconds = await told_after(client, kill, "rank 1 of 2 was killed")
                assert seconds < 1, "a death"
                await asyncio.wait_for(client.revive(), 60)
                assert await ask(client, GREEDY) == alone[0]
        finally:
            await client.close()

    with other_machine(cable, token_file) as other:
        asyncio.run(run(other))
        assert other.poll() is None, "it looks for the first machine on"


def test_a_pulled_cable_and_a_stopped_rank_are_told_within_ten_seconds(
    cable: Cable, client: EngineClient, token_file: Path, alone: list[list[int | None]]
) -> None:
    async def run(other: subprocess.Popen[str]) -> None:
        await client.start()
        try:
            assert await told_after(client, cable.pull, "rank 1 of 2 is not heard") < 10
            cable.plug()
            await asyncio.wait_for(client.revive(), 90)
            assert await ask(client, GREEDY) == alone[0]
            [rank] = ranks_of(other)
            stop = partial(os.kill, rank, signal.SIGSTOP)
            assert await told_after(client, stop, "rank 1 of 2") < 10
            await asyncio.wait_for(client.revive(), 60)
            assert await ask(client, GREEDY) == alone[0]
            [rank] = ranks_of(other)
            stopped = partial(os.kill, other.pid, signal.SIGSTOP)
            assert await told_after(client, stopped, "rank 1 of 2 is not heard") < 10
            os.kill(other.pid, signal.SIGCONT)
            await asyncio.wait_for(client.revive(), 90)
            assert await ask(client, GREEDY) == alone[0]
        finally:
            os.kill(other.pid, signal.SIGCONT)
            cable.plug()
            await client.close()

    with other_machine(cable, token_file) as other:
        asyncio.run(run(other))


def test_another_machine_that_dies_takes_its_ranks_along_and_a_new_one_takes_their_place(
    cable: Cable, client: EngineClient, token_file: Path, alone: list[list[int | None]]
) -> None:
    async def run(first: subprocess.Popen[str]) -> None:
        await client.start()
        try:
            [rank] = ranks_of(first)
            assert await told_after(client, first.kill, "rank 1 of 2") < 1
            end = time.monotonic() + 10
            while Path(f"/proc/{rank}").exists():
                assert time.monotonic() < end, "an orphan"
                time.sleep(0.02)
            with other_machine(cable, token_file):
                await asyncio.wait_for(client.revive(), 60)
                assert await ask(client, GREEDY) == alone[0]
        finally:
            await client.close()

    with other_machine(cable, token_file) as first:
        asyncio.run(run(first))


def test_machines_have_the_experts_of_a_mixture_among_them(
    cable: Cable, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mixture(tmp_path)
    limits: dict[str, Any] = {**OPTIONS, "memory": "3GiB", "max_model_len": 256}

    async def run(**options: Any) -> list[list[int | None]]:
        client = EngineClient(resolve(str(tmp_path), Options(**limits, **options)))
        await client.start()
        try:
            return [await ask(client, params) for params in (GREEDY, SEEDED)]
        finally:
            await client.close()

    right = asyncio.run(run())
    joined = {"rank_host": FIRST, "rank_port": PORT, "rank_token_file": str(token_file)}
    monkeypatch.setattr(launch, "_COMMAND", (*cable.within(0), *launch._COMMAND))
    with other_machine(cable, token_file):
        assert asyncio.run(run(tp=2, ep=True, nodes=2, **joined)) == right


@pytest.mark.parametrize("shared", [{"tp": 2}, {"pp": 2}], ids=["tp", "pp"])
def test_the_other_machine_is_sent_the_pixels_of_images(
    shared: dict[str, int],
    cable: Cable,
    token_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `--pp` it alone computes them."""
    pytest.importorskip("PIL")
    pytest.importorskip("inferno_qwen2", reason="needs inferno-qwen2")
    write_seeing_model(tmp_path)
    files = [picture_file(seed, (200, 160)) for seed in (1, 2)]

    async def run(plan: Plan) -> list[list[int | None]]:
        client = EngineClient(plan)
        await client.start()
        tokens = []
        try:
            for i, file in enumerate([*files, files[0]]):
                picture = await client.see(file, "image", IMAGE)
                ids = (7, 8, START, *[PAD] * picture.count, END, 30 + i)
                images = tuple(picture.at(3))
                request = Request(id=f"{i}", token_ids=ids, images=images, params=GREEDY)
                outputs = [each async for batch in client.submit(request) for each in batch]
                assert not outputs[-1].error, outputs[-1].error
                tokens.append([each.token_id for each in outputs])
        finally:
            await client.close()
        return tokens

    options: dict[str, Any] = {**OPTIONS, "memory": "3GiB", "max_num_batched_tokens": 64}
    right = asyncio.run(run(resolve(str(tmp_path), Options(**options))))
    assert right[0] != right[1], "another image, other tokens"
    options |= {"rank_host": FIRST, "rank_port": PORT, "rank_token_file": str(token_file)}
    plan = resolve(str(tmp_path), Options(**(options | shared), nodes=2))
    monkeypatch.setattr(launch, "_COMMAND", (*cable.within(0), *launch._COMMAND))
    with other_machine(cable, token_file):
        assert asyncio.run(run(plan)) == right
