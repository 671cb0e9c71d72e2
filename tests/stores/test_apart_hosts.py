"""Prefill and decode on two hosts: two network namespaces with a wire between them."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stores.test_apart import ask, token_file
from tests.stores.test_stored_caches import load

ROOT = Path(__file__).parents[2]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Namespaces of two hosts, 10.77.0.1 and 10.77.0.2."""
    if shutil.which("ip") is None or os.getuid() != 0:
        pytest.skip("network namespaces need `ip` and root")
    tag = secrets.token_hex(3)
    names = f"inferno-{tag}-1", f"inferno-{tag}-2"
    wires = f"in{tag}1", f"in{tag}2"
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", wires[0], "netns", names[0], "type", "veth",
           "peer", "name", wires[1], "netns", names[1])  # fmt: skip
        for name, wire, address in zip(names, wires, ("10.77.0.1", "10.77.0.2"), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", wire)
            ip("-n", name, "link", "set", wire, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        _remove(names)
        pytest.skip(f"no network namespaces here: {error.stderr.decode()}")
    yield names
    _remove(names)


def _remove(names: tuple[str, str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


@pytest.mark.slow
def test_one_host_computes_what_the_other_goes_on_with(
    hosts: tuple[str, str], tmp_path: Path
) -> None:
    token = token_file(tmp_path / "token")
    running = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-m", "tests.dies_at", role]
            + ["tcp://10.77.0.1:7000", "nothing", token],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, role in zip(hosts, ("prefill", "decode"), strict=True)
    ]
    try:
        output = running[1].stdout
        assert output is not None
        lines = [output.readline().split() for _ in range(4)]
    finally:
        for process in running:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    right = ask(load("demo"), range(100))[0][:4]
    assert [int(token_id) for token_id, _ in lines] == right
    assert "96" in {remote for _, remote in lines}, "no block came from the other host"
