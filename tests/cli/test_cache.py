"""`inferno cache`: what it lists, removes and finds damaged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from inferno.weights.packed import PackedStore, Part

Inferno = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tmp_path: Path) -> PackedStore:
    cache = PackedStore(tmp_path / "inferno" / "packed")
    for model, isq in (("org/one", None), ("org/two", "q8_0")):
        part = Part("linear a", {}, [memoryview(bytes(70_000))])
        about = {"model": model, "dtype": "bfloat16", "isq": isq}
        assert cache.write({"model": model}, about, [part])
    return cache


@pytest.mark.slow
def test_it_lists_sizes_use_and_models(
    inferno: Inferno, store: PackedStore, tmp_path: Path
) -> None:
    done = inferno("cache", "ls", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0
    for word in ("org/one", "org/two", "q8_0", "bfloat16", "KiB", "now", "2 files"):
        assert word in done.stdout
    done = inferno("cache", "ls", "org/two", "--json", "--packed-cache", str(store.folder))
    [file] = json.loads(done.stdout)["files"]
    assert file["about"]["model"] == "org/two" and file["nbytes"] > 70_000


@pytest.mark.slow
def test_it_removes_by_model_by_name_and_all(
    inferno: Inferno, store: PackedStore, tmp_path: Path
) -> None:
    env = {"INFERNO_PACKED_CACHE": str(store.folder)}
    assert inferno("cache", "rm", **env).returncode == 2
    done = inferno("cache", "rm", "org/none", **env)
    assert done.returncode == 2 and "inferno cache ls" in done.stderr
    assert "Removed 1 file" in inferno("cache", "rm", "org/one", **env).stdout
    [entry] = store.entries()
    assert entry.about["model"] == "org/two"
    assert inferno("cache", "rm", entry.name[:12], **env).returncode == 0
    assert "No packed weights" in inferno("cache", "ls", **env).stdout
    assert inferno("cache", "rm", "--all", **env).returncode == 0


def test_verify_reads_everything_and_removes_what_is_damaged(
    inferno: Inferno, store: PackedStore
) -> None:
    env = {"INFERNO_PACKED_CACHE": str(store.folder)}
    assert inferno("cache", "verify", **env).returncode == 0
    path = store._path({"model": "org/one"})
    raw = bytearray(path.read_bytes())
    raw[-5000] ^= 1
    path.write_bytes(raw)
    done = inferno("cache", "verify", **env)
    assert done.returncode == 1 and "checksum" in done.stdout
    assert [entry.about["model"] for entry in store.entries()] == ["org/two"]
