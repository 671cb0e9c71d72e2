"""What a server does whose memory, threads or descriptors are limited to about what it needs.

    python benchmarks/limits.py [REF] [--limits address-space threads descriptors] [--from 0.9]
        [--to 1.5] [--step 0.1] [--seconds 120]

What it needs is measured first, without limits. Then it is started under each limit, and asked for
plain and constrained answers at once. It must end in a sentence, or answer each request, if only
with an error of a sentence, and end when it is told to: never hang, never print a traceback. Linux
only. Threads are limited for a user, and for root not at all: as root, the server runs as another
user, who may read what root may (`setpriv`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from attrs import define

KINDS = {
    "address-space": resource.RLIMIT_AS,
    "threads": resource.RLIMIT_NPROC,
    "descriptors": resource.RLIMIT_NOFILE,
}
USER = 64_321
"""Has no other processes."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
PLAIN = {"prompt": "hi", "max_tokens": 8}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
CONSTRAINED = CHAT | {
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
}
ASKED = [("completions", PLAIN), ("chat/completions", CHAT), ("chat/completions", CONSTRAINED)] * 4
_SERVING = re.compile(r"Serving at (http://\S+?)/v1")


@define
class Need:
    """The most that a server's processes had so far."""

    address_space: int = 0
    """Bytes of the largest process."""
    threads: int = 0
    """Of all processes together."""
    descriptors: int = 0
    """One more than the largest descriptor of a process."""

    def look(self, pid: int) -> None:
        threads = 0
        for each in tree(pid):
            with contextlib.suppress(OSError, IndexError):
                status = Path(f"/proc/{each}/status").read_text()
                threads += int(re.findall(r"Threads:\s+(\d+)", status)[0])
                peak = int(re.findall(r"VmPeak:\s+(\d+)", status)[0]) * 1024
                self.address_space = max(self.address_space, peak)
                descriptors = max(map(int, os.listdir(f"/proc/{each}/fd"))) + 1
                self.descriptors = max(self.descriptors, descriptors)
        self.threads = max(self.threads, threads)


def tree(pid: int) -> list[int]:
    """Return a process and those that it started."""
    pids = [pid]
    for task in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                pids += tree(child)
    return pids


@define(eq=False)
class Run:
    """One server."""

    ref: str
    folder: Path
    seconds: float
    limit: tuple[str, int] | None = None
    need: Need | None = None
    """To be measured."""

    def outcome(self) -> str:
        """Start it, ask, and end it. Returns what became of it; what must not be begins with
        BAD."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        with log.open("wb") as out:
            process = subprocess.Popen(
                self._command(),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=self._limited,
                env={**os.environ, "NO_COLOR": "1", "COLUMNS": "1000", "HOME": str(self.folder)},
            )
        try:
            verdict = self._watched(process, log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        text = log.read_text(errors="replace")
        trace = "Traceback" in text or "panicked" in text
        return f"BAD, a traceback: {verdict}\n{text}" if trace else verdict

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "inferno", "serve", self.ref, "--port", "0", "--no-page"]
        if os.geteuid() == 0 and self.limit is not None and self.limit[0] == "threads":
            who = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
            rights = "+dac_override,+dac_read_search"
            who += [f"--inh-caps={rights}", f"--ambient-caps={rights}"]
            return ["setpriv", *who, *command]
        return command

    def _limited(self) -> None:
        if self.limit is not None:
            kind, most = self.limit
            resource.setrlimit(KINDS[kind], (most, most))

    def _watched(self, process: subprocess.Popen[bytes], log: Path) -> str:
        end, url = time.monotonic() + self.seconds, ""
        while time.monotonic() < end and process.poll() is None and not url:
            url = next(iter(_SERVING.findall(log.read_text(errors="replace"))), "")
            self._look(process.pid)
            time.sleep(0.05)
        if process.poll() is not None:
            return ended(process.returncode, log)
        if not url:
            return f"BAD, hangs at the start: {log.read_text(errors='replace')[-2000:]}"
        with ThreadPoolExecutor(len(ASKED)) as pool:
            answers = [pool.submit(self._answer, url, *request) for request in ASKED]
            while not all(each.done() for each in answers):
                self._look(process.pid)
                time.sleep(0.05)
        statuses = sorted({each.result() for each in answers})
        if process.poll() is not None:
            return f"{ended(process.returncode, log)}, after {statuses}"
        process.terminate()
        try:
            process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            return f"BAD, does not end: {statuses}"
        if any(each.startswith("BAD") for each in statuses):
            return f"BAD, answers: {statuses}"
        return "serves" if statuses == ["200"] else f"serves, answers: {statuses}"

    def _answer(self, url: str, path: str, body: dict[str, Any]) -> str:
        try:
            answer = httpx.post(f"{url}/v1/{path}", json=body, timeout=self.seconds)
        except httpx.TimeoutException:
            return "BAD: no answer"
        except httpx.HTTPError as error:
            return f"BAD: {type(error).__name__}"
        if answer.status_code == 200:
            return "200"
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return f"{answer.status_code}: {answer.json()['error']['message']}"
        return f"BAD: {answer.status_code} {answer.text[:200]}"

    def _look(self, pid: int) -> None:
        if self.need is not None:
            self.need.look(pid)


def ended(code: int, log: Path) -> str:
    """Return how a server ended: a sentence, unless a signal ended it or it said nothing."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    tail = " / ".join(lines[-4:])
    if code < 0 or not tail or "This is a bug" in tail:
        return f"BAD, ends with code {code}: {tail}"
    return f"ends with code {code}: {tail}"


def fractions(first: float, last: float, step: float) -> Iterator[float]:
    for i in range(round((last - first) / step) + 1):
        yield first + i * step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("ref", nargs="?", default="demo")
    parser.add_argument("--limits", nargs="+", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--from", type=float, default=0.9, dest="first")
    parser.add_argument("--to", type=float, default=1.5, dest="last")
    parser.add_argument("--step", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=120)
    given = parser.parse_args()
    kinds, bad = list(given.limits), 0
    if "threads" in kinds and os.geteuid() == 0 and shutil.which("setpriv") is None:
        print("skipped threads: they are not limited for root, and setpriv is missing")
        kinds.remove("threads")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        need = Need()
        plain = Run(given.ref, folder, given.seconds, need=need).outcome()
        if plain != "serves":
            raise SystemExit(f"without limits: {plain}")
        print("needs:", json.dumps({name: getattr(need, name) for name in Need.__slots__[:3]}))
        for kind in kinds:
            needed = getattr(need, kind.replace("-", "_"))
            for fraction in fractions(given.first, given.last, given.step):
                limit = round(needed * fraction)
                began = time.monotonic()
                verdict = Run(given.ref, folder, given.seconds, (kind, limit)).outcome()
                bad += verdict.startswith("BAD")
                took = time.monotonic() - began
                print(f"{kind} {fraction:.2f} ({limit}), {took:.0f} s: {verdict}", flush=True)
    raise SystemExit(bad > 0)


if __name__ == "__main__":
    main()
