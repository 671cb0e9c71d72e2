"""Runs `inferno ARGS` in forks of one process that has imported the command line and the plugins,
which is most of what a command takes. Run as a script, it is that process."""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class Forks:
    """The process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self, args: Sequence[str], env: Mapping[str, str], folder: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a fork with this environment, whose PYTHONPATH counts."""
        assert self._process.stdin is not None and self._process.stdout is not None, "pipes"
        streams = [folder / f".{name}" for name in ("stdout", "stderr")]
        request = [list(args), dict(env), str(folder), *map(str, streams)]
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        out, err = (path.read_text() for path in streams)
        for path in streams:
            path.unlink()
        return subprocess.CompletedProcess(list(args), status, out, err)

    def close(self) -> None:
        self._process.communicate()


def _become(args: list[str], env: dict[str, str], folder: str, *streams: str) -> None:
    """Make this fork what `python -m inferno` would be."""
    for descriptor, path in enumerate([os.devnull, *streams]):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    added = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [folder, *added, *(path for path in sys.path[1:] if path not in added)]
    sys.argv[1:] = args
    importlib.invalidate_caches()


def _serve() -> None:
    from inferno.catalog import load_catalog
    from inferno.catalog.discovery import GROUPS

    for module in ("cli.explain", "cli.plugins", "cli.render", "llm", "plan"):
        importlib.import_module(f"inferno.{module}")
    load_catalog(groups=GROUPS)
    assert "torch" not in sys.modules, "it would be there in every command"
    gc.freeze()
    answers = os.dup(1)
    while line := sys.stdin.readline():
        if not (pid := os.fork()):
            os.close(answers)
            _become(*json.loads(line))
            runpy.run_module("inferno", run_name="__main__", alter_sys=True)
            return
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(answers, f"{status}\n".encode())


if __name__ == "__main__":
    _serve()
