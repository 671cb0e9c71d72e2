"""Nothing that a server accepted is lost: it is killed with all its processes at random moments, or
its disk is full at random moments, while clients store files, batches, responses and conversations.

    python benchmarks/crashes.py [--kills 200] [--full 200] [--seed 1]

Afterwards every id that was told to a client must be found, and must have ended: a response
`completed`, `failed`, `cancelled` or `incomplete`, a batch with an answer to each line if it is
completed. The full disk is a file system in memory that the script mounts for itself (`unshare`);
deletes must work on it, and no answer may be a 500.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from attrs import define, field

ENDED = {"completed", "failed", "cancelled", "incomplete", "expired"}
LINES = 3
"""Requests of a batch."""
MOUNTED = "INFERNO_CRASHES_MOUNTED"
SIZE = 6 * 2**20
"""Bytes of the disk that becomes full."""


@define(eq=False)
class Told:
    """What clients were told, by id."""

    kinds: dict[str, str] = field(factory=dict)
    """`responses`, `batches`, `files`, `conversations`."""
    content: dict[str, bytes] = field(factory=dict)
    """Of files."""
    gone: set[str] = field(factory=set)
    """What a client asked to delete: it may be there or not."""
    wrong: list[str] = field(factory=list)
    """Answers that must not be."""
    refused: int = 0
    """Requests that were not accepted."""

    def keep(self, kind: str, answer: httpx.Response, content: bytes = b"") -> None:
        self.refused += answer.status_code == 503
        if answer.status_code >= 500 and answer.status_code != 503:
            self.wrong.append(f"{answer.request.method} {answer.request.url.path}: {answer.text}")
        if answer.status_code == 200:
            id = answer.json()["id"]
            self.kinds[id] = kind
            self.content |= {id: content} if content else {}


@define(eq=False)
class Server:
    """A server with a store, in a session of its own, so that all its processes can be killed."""

    store: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", "inferno", "serve", "demo", "--port", str(self.port)]
        options = ("--device", "cpu", "--no-page", "--store", str(self.store), "--store-size", "64")
        log = self.store.with_suffix(".log") if MOUNTED not in os.environ else Path(os.devnull)
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, *options], stdout=out, stderr=out, start_new_session=True
            )
        while wait and not self.answers():
            if self.process.poll() is not None:
                raise SystemExit(f"the server does not start: {log}")
            time.sleep(0.05)

    def answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        return False

    def kill(self) -> None:
        """Kill the server, its engine and whatever else it has started."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def act(url: str, told: Told, draw: random.Random) -> None:
    """Send a few requests of a client, one after another."""
    with httpx.Client(base_url=url, timeout=60) as http:
        match draw.randrange(6):
            case 0 | 1:
                body = {
                    "input": "hi",
                    "background": True,
                    "max_output_tokens": draw.choice([2, 90]),
                }
                told.keep("responses", http.post("/v1/responses", json=body))
            case 2:
                body = {"input": "hi", "max_output_tokens": 2}
                told.keep("responses", http.post("/v1/responses", json=body))
            case 3:
                batch(http, told)
            case 4:
                items = [{"type": "message", "role": "user", "content": "x" * 500}]
                told.keep("conversations", http.post("/v1/conversations", json={"items": items}))
            case 5:
                known = [id for id, kind in [*told.kinds.items()] if kind == "responses"]
                if known:
                    id = draw.choice(known)
                    if draw.random() < 0.5:
                        http.post(f"/v1/responses/{id}/cancel")
                        return
                    told.gone.add(id)
                    answer = http.delete(f"/v1/responses/{id}")
                    if answer.status_code not in (200, 404):
                        told.wrong.append(f"DELETE {id}: {answer.status_code} {answer.text}")


def batch(http: httpx.Client, told: Told) -> None:
    body = {"prompt": "hi", "max_tokens": 2}
    content = b"".join(
        json.dumps(
            {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}
        ).encode()
        + b"\n"
        for i in range(LINES)
    )
    made = http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
    told.keep("files", made, content)
    if made.status_code == 200:
        wanted = {"input_file_id": made.json()["id"], "endpoint": "/v1/completions"}
        told.keep("batches", http.post("/v1/batches", json={**wanted, "completion_window": "24h"}))


@contextlib.contextmanager
def clients(server: Server, told: Told, seed: int, count: int = 4) -> Iterator[None]:
    """Clients that go on until they are told to stop, whatever becomes of the server."""
    stop = threading.Event()

    def go_on(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        while not stop.is_set():
            try:
                act(server.url, told, draw)
            except (httpx.HTTPError, OSError, ValueError):
                time.sleep(0.05)

    threads = [threading.Thread(target=go_on, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def lost(server: Server, told: Told) -> list[str]:
    """Ask for all that was told. Returns what is wrong."""
    faults = list(told.wrong)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for id, kind in told.kinds.items():
            end = time.monotonic() + 90
            while True:
                answer = http.get(f"/v1/{kind}/{id}")
                status = answer.json().get("status") if answer.status_code == 200 else None
                waits = kind in ("responses", "batches") and status not in ENDED
                if answer.status_code != 200 or not waits or time.monotonic() > end:
                    break
                time.sleep(0.2)
            if answer.status_code == 404 and id in told.gone:
                continue
            if answer.status_code != 200 or waits:
                faults.append(f"{kind} {id}: {answer.status_code}, {status}")
            elif id in told.content:
                if http.get(f"/v1/files/{id}/content").content != told.content[id]:
                    faults.append(f"{kind} {id}: another content")
            elif kind == "batches" and status == "completed":
                faults += incomplete(http, answer.json())
    return faults


def incomplete(http: httpx.Client, made: dict[str, Any]) -> list[str]:
    ids = list[str]()
    for name in ("output_file_id", "error_file_id"):
        if made[name] is not None:
            content = http.get(f"/v1/files/{made[name]}/content").text
            ids += [json.loads(line)["custom_id"] for line in content.splitlines()]
    return [] if sorted(ids) == list(map(str, range(LINES))) else [f"{made['id']}: answers {ids}"]


def kill_at_random(kills: int, seed: int, folder: Path) -> list[str]:
    """Kill the server `kills` times, now and then while it starts. Returns what is wrong."""
    server, told, draw = Server(folder / "store.sqlite"), Told(), random.Random(seed)
    with clients(server, told, seed):
        for number in range(kills):
            server.start(wait=bool(number % 5))
            time.sleep(draw.uniform(0, 1.5))
            server.kill()
    server.start()
    try:
        faults = lost(server, told)
    finally:
        server.kill()
    print(f"{kills} kills: {len(told.kinds)} ids, {len(faults)} lost")
    return faults


def fill_at_random(times: int, seed: int, folder: Path) -> list[str]:
    """Let the disk be full `times` times. Returns what is wrong, before and after a restart."""
    server, told, draw = Server(folder / "store.sqlite"), Told(), random.Random(seed)
    server.start()
    try:
        with clients(server, told, seed):
            for _ in range(times):
                time.sleep(draw.uniform(0, 0.3))
                with filled(folder / "filler"):
                    time.sleep(draw.uniform(0.1, 0.5))
        faults = lost(server, told)
        server.kill()
        server.start()
        faults += lost(server, told)
    finally:
        server.kill()
    print(f"{times} times full: {len(told.kinds)} ids, {told.refused} refused, {len(faults)} lost")
    return faults


@contextlib.contextmanager
def filled(path: Path) -> Iterator[None]:
    """Fill the disk that a path is on."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (2**16, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    try:
        yield
    finally:
        path.unlink()


def mounted() -> bool:
    """Begin again in a mount namespace of its own. Returns False where there can be none."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    how = [unshare, "-m"] if os.geteuid() == 0 else [unshare, "-r", "-m"]
    if subprocess.run([*how, "true"], capture_output=True).returncode:
        return False
    done = subprocess.run(
        [*how, sys.executable, *sys.argv], env={**os.environ, MOUNTED: "1"}, check=False
    )
    raise SystemExit(done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--full", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    faults: list[str] = []
    if given.full and MOUNTED not in os.environ and not mounted():
        print("no file system can be mounted here: the full disk is left out")
        given.full = 0
    with tempfile.TemporaryDirectory() as folder:
        if given.kills:
            faults += kill_at_random(given.kills, given.seed, Path(folder))
        if given.full:
            disk = Path(folder) / "disk"
            disk.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(disk)]
            subprocess.run(mount, check=True)
            try:
                faults += fill_at_random(given.full, given.seed, disk)
            finally:
                subprocess.run(["umount", "-l", str(disk)], check=False)
    for line in faults[:20]:
        print(line)
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
