"""Tests of every sandbox: what a hostile process tries fails in it, and works without it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from inferno.contracts import Confinement, Sandbox
from inferno.errors import InfernoError
from inferno.process.environment import environment
from inferno.testing import attempts
from inferno.testing.installed import Installed

PREVENTED = {"EACCES", "EPERM", "EXDEV"}
_VICTIM = """
import ctypes, sys
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)  # any process may trace it
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def targets(folder: Path, sandbox: str | None) -> Iterator[dict[str, Any]]:
    """Context with what a hostile process would reach (`attempts.Targets`)."""
    for name in ("reads", "writes", "elsewhere"):
        (folder / name).mkdir()
    (folder / "reads" / "config.json").write_text("{}")
    (folder / "elsewhere" / "secret").write_text("hf_secret")
    # The secret is in its environment when it starts: that is what /proc shows.
    victim = subprocess.Popen(
        [sys.executable, "-c", _VICTIM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "HF_TOKEN": "hf_secret"},
    )
    try:
        assert victim.stdout is not None and victim.stdout.readline()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield {
                "sandbox": sandbox,
                "reads": str(folder / "reads"),
                "writes": str(folder / "writes"),
                "secret": str(folder / "elsewhere" / "secret"),
                "port": listener.getsockname()[1],
                "victim": victim.pid,
            }
    finally:
        victim.kill()
        victim.communicate()


def _tried(folder: Path, sandbox: str | None) -> dict[str, str]:
    with targets(folder, sandbox) as at:
        done = subprocess.run(
            [sys.executable, attempts.__file__, json.dumps(at)],
            capture_output=True,
            text=True,
            env=environment(at["writes"]),
            cwd=folder / "elsewhere",
        )
    assert done.returncode == 0, done.stderr
    errors: dict[str, str] = json.loads(done.stdout)
    return errors


class SandboxTests(Installed):
    """Set `sandbox` to its registered name. Skipped on machines that it refuses."""

    sandbox: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls) -> Sandbox:
        from inferno.catalog import load_catalog

        item = load_catalog().named(Sandbox, cls.sandbox).item
        if (why := item.refuses("cpu")) is not None:
            pytest.skip(why)
        return item

    @pytest.fixture(scope="class")
    @classmethod
    def confined(cls, item: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
        return _tried(tmp_path_factory.mktemp("confined"), cls.sandbox)

    @pytest.fixture(scope="class")
    @classmethod
    def free(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
        return _tried(tmp_path_factory.mktemp("free"), None)

    @pytest.mark.parametrize("name", [attempt.__name__ for attempt in attempts.ATTEMPTS])
    def test_what_a_hostile_process_tries_is_prevented(
        self, confined: dict[str, str], free: dict[str, str], name: str
    ) -> None:
        assert confined[name] in PREVENTED
        if free[name]:  # a container, or a machine without IPv6
            pytest.skip(f"nothing here can do that: {free[name]}")

    @pytest.mark.parametrize("name", [work.__name__ for work in attempts.WORK])
    def test_what_an_engine_does_works(self, confined: dict[str, str], name: str) -> None:
        assert confined[name] == ""

    def test_it_says_what_it_holds(self, item: Sandbox) -> None:
        assert item.holds() and all(
            isinstance(each, str) for each in (*item.holds(), *item.lacks())
        )

    def test_a_process_with_threads_is_refused(self, item: Sandbox) -> None:
        """This one has some: nothing is confined halfway."""
        import threading

        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        try:
            with pytest.raises(InfernoError, match="threads"):
                item.confine(Confinement())
        finally:
            done.set()
            thread.join()
        Path(__file__).read_text()
        socket.socket(socket.AF_INET).close()
