"""What launchers say of their processes by the environment."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferno.cli import rank_options
from inferno.cli.launched import Launched, first_node, launched
from inferno.cli.rank_options import fold_ranks, token_file
from inferno.errors import OptionError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "6",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NNODES": "3",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def place(rank: int, ranks: int, machines: int, host: str, port: int) -> Launched:
    return Launched(rank=rank, ranks=ranks, machines=machines, host=host, port=port)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (TORCHRUN, place(3, 4, 2, "node-a", 29501)),
        (SLURM, place(0, 6, 3, "gpu03", 29400)),
        (SLURM | {"MASTER_ADDR": "10.0.0.9"}, place(0, 6, 3, "10.0.0.9", 29400)),
        (MPI, place(1, 2, 1, "127.0.0.1", 29400)),
        (MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "a"}, place(1, 2, 2, "a", 29400)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "a"}, place(0, 2, 1, "a", 29400)),
        (SLURM | TORCHRUN, place(3, 4, 2, "node-a", 29501)),
        (SLURM | {"SLURM_NTASKS": "5"}, place(0, 5, 5, "gpu03", 29400)),
    ],
)
def test_a_launchers_environment_is_understood(environ: dict[str, str], found: Launched) -> None:
    assert launched(environ) == found


@pytest.mark.parametrize(
    ("environ", "cause"),
    [
        ({}, "RANK and WORLD_SIZE are not set"),
        ({**TORCHRUN, "RANK": "4"}, "rank 4 of 4"),
        ({**TORCHRUN, "RANK": "x"}, "RANK is 'x'"),
        ({**TORCHRUN, "MASTER_PORT": "-1"}, "MASTER_PORT is '-1'"),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "MASTER_ADDR is not set"),
    ],
)
def test_one_that_says_too_little_is_refused_with_what_to_set(
    environ: dict[str, str], cause: str
) -> None:
    with pytest.raises(OptionError) as caught:
        launched(environ)
    assert cause in caught.value.cause and caught.value.remedy


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[03-05,9],login", "gpu03"),
        ("gpu7", "gpu7"),
        ("a,b", "a"),
        ("rack1-n[2]-ib,x", "rack1-n2-ib"),
    ],
)
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_the_environment_gives_options_that_were_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first = TORCHRUN | {"RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    monkeypatch.setattr(rank_options, "environ", lambda: first)
    given: dict[str, Any] = {"executor": "torchrun", "rank_port": 7}
    fold_ranks(given)
    assert given == {"executor": "environment", "tp": 4, "nodes": 2, "rank_port": 7}, (
        "the loopback device is of one machine"
    )
    monkeypatch.setattr(rank_options, "environ", lambda: MPI)
    with pytest.raises(OptionError, match="cannot be rank 1"):
        fold_ranks({"executor": "mpi"})
    monkeypatch.setattr(rank_options, "environ", lambda: MPI | {"OMPI_COMM_WORLD_RANK": "0"})
    given = {"executor": "mpi", "tp": 2}
    fold_ranks(given)
    assert given["rank_host"] == "127.0.0.1" and given["nodes"] == 1


def test_stages_have_as_many_of_a_launchers_ranks_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_options, "environ", lambda: TORCHRUN | {"RANK": "0"})
    options: dict[str, Any] = {"executor": "torchrun", "pp": 2}
    fold_ranks(options)
    assert (options["tp"], options["pp"], options["nodes"]) == (2, 2, 2)
    with pytest.raises(OptionError, match="4 ranks cannot be dealt out evenly to 3 stages"):
        fold_ranks({"executor": "torchrun", "pp": 3})


def test_a_token_of_the_environment_is_handed_on_in_a_private_file() -> None:
    assert token_file({}) is None
    file = token_file({"INFERNO_RANK_TOKEN": "secret of the machines"})
    assert file is not None and Path(file).read_text() == "secret of the machines"
    assert Path(file).stat().st_mode & 0o077 == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_torchrun_starts_an_engine_and_its_rank_with_the_answer_of_one_process(
    tmp_path: Path,
) -> None:
    """Two processes of one command line: the first answers, the other computes with it."""
    pytest.importorskip("inferno_demo")
    torchrun = Path(sys.executable).parent / "torchrun"
    if not torchrun.exists():
        pytest.skip("torchrun is not installed")
    args = ["generate", "demo", "--prompt", "One two", "--max-tokens", "16", "--temperature", "0"]
    args += ["--device", "cpu", "--dtype", "float32", "--threads", "1", "--raw"]
    launcher = [str(torchrun), "--nnodes", "1", "--nproc-per-node", "2", "--master-addr"]
    launcher += ["127.0.0.1", "--master-port", str(free_port()), "-m", "inferno"]
    environ = {"XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=120, check=False
        )

    shared = run(*launcher, *args, "--executor", "torchrun")
    assert shared.returncode == 0, shared.stderr
    alone = run(sys.executable, "-m", "inferno", *args)
    assert shared.stdout == alone.stdout and alone.stdout.strip()
    assert "2, started by environment" in shared.stderr
    assert (tmp_path / "inferno" / "ranks.token").stat().st_mode & 0o077 == 0
