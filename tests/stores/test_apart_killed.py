"""One of the instances is killed at each of its messages: the other goes on with right tokens."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.stores.test_apart import PROMPTS, SHORT, Prefiller, ask, joined, wait_for
from tests.stores.test_stored_caches import load

ROOT = Path(__file__).parents[2]
daily_or_slow = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("Welcome", "Pong")]


@contextmanager
def instance(role: str, url: str, kind: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that is killed when it is about to send a message of a kind."""
    command = [sys.executable, "-m", "tests.dies_at", role, url, kind]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Blocks", "Done", *daily_or_slow])
def test_a_prefilling_process_is_killed(kind: str) -> None:
    url = f"shm://test-{secrets.token_hex(6)}"
    right = ask(load("demo"), PROMPTS[2])[0]
    engine = load("demo", decode_with=url, **SHORT)
    with instance("prefill", url, kind) as process:
        if kind in ("Blocks", "Done"):
            wait_for(lambda: joined(engine))
        for _ in range(3 if kind == "Pong" else 1):
            tokens, first = ask(engine, PROMPTS[2])
            assert tokens == right
        process.wait()
        assert process.returncode == -signal.SIGKILL
    assert not joined(engine) or kind == "Pong"
    if kind == "Done":
        assert first.num_remote > 0, "what had come is used"
    engine._scheduler._groups.reset()
    assert ask(engine, PROMPTS[2])[0] == right
    if kind in ("Blocks", "Done"):
        assert engine.stats().fallbacks == {"lost": 1, "not connected": 1}
    engine.close()
    wait_for(lambda: not shared())


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["Ask", "Release", "Join", "Mapped"],
)
def test_a_decoding_process_is_killed(kind: str) -> None:
    url = f"shm://test-{secrets.token_hex(6)}"
    prefiller = Prefiller("demo", url)
    with instance("decode", url, kind) as process:
        process.wait()
        assert process.returncode == -signal.SIGKILL
    engine = load("demo", decode_with=url, **SHORT)
    wait_for(lambda: joined(engine))
    assert ask(engine, PROMPTS[2])[1].num_remote == 128
    engine.close()
    store: Any = prefiller.engine._store
    prefiller.close()
    assert not store.index.server._peers
    wait_for(lambda: not shared())


@pytest.mark.slow
def test_a_stopped_process_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("inferno_disaggregated.client")
    monkeypatch.setattr(client, "SILENCE", 2.0)
    url = f"shm://test-{secrets.token_hex(6)}"
    engine = load("demo", decode_with=url, **SHORT)
    right = ask(load("demo"), PROMPTS[2])[0]
    with instance("prefill", url, "nothing") as process:
        wait_for(lambda: joined(engine))
        process.send_signal(signal.SIGSTOP)
        tokens, first = ask(engine, PROMPTS[2])
        assert tokens == right and first.num_remote == 0
        assert engine.stats().fallbacks == {"lost": 1}
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: joined(engine))
        engine._scheduler._groups.reset()
        assert ask(engine, PROMPTS[2])[1].num_remote == 128, "it is used again"
    engine.close()


def shared() -> list[str]:
    """Names of shared memory of processes that have ended."""
    memory = pytest.importorskip("inferno_disaggregated.shared_memory")
    memory.remove_stale()
    return [path.name for path in Path("/dev/shm").glob("inferno-link-*")]
