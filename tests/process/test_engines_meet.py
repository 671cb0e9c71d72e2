"""How engines that share experts meet."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inferno.contracts import Shard
from inferno.errors import EngineDeadError, SystemLimitError
from inferno.process.engines.meeting import CURRENT, meet
from inferno.process.engines.together import Together

Peers = Mapping[int, socket.socket]


def wanted() -> bool:
    return True


def test_all_are_connected_and_begin_in_one_folder(tmp_path: Path) -> None:
    begun = dict[int, Path]()

    def come(engine: int) -> Peers:
        return meet(tmp_path, engine, 3, wanted, lambda group: begun.update({engine: group}))

    with ThreadPoolExecutor(3) as pool:
        peers = [*pool.map(come, range(3))]
    assert len({*begun.values()}) == 1 and next(iter(begun.values())).parent == tmp_path
    for engine, others in enumerate(peers):
        assert {*others} == {0, 1, 2} - {engine}
        for other, peer in others.items():
            peer.sendall(bytes([engine]))
            assert peers[other][engine].recv(1) == bytes([engine])
    for each in peers:
        for peer in each.values():
            peer.close()


def test_a_group_whose_first_engine_has_ended_is_passed_over(tmp_path: Path) -> None:
    """One that listens no more, and one that ends while others come."""
    (tmp_path / CURRENT).write_text("gone")
    with ThreadPoolExecutor(2) as pool:
        second: Future[Peers] = pool.submit(meet, tmp_path, 1, 2, wanted, lambda group: None)
        (tmp_path / "dying").mkdir()
        with socket.socket(socket.AF_UNIX) as dying:
            dying.bind(str(tmp_path / "dying" / "0"))
            dying.listen()
            (tmp_path / CURRENT).write_text("dying")
            dying.accept()[0].close()
        first = pool.submit(meet, tmp_path, 0, 2, wanted, lambda group: None)
        for peers in (first.result(), second.result()):
            [peer] = peers.values()
            peer.close()


def test_the_first_engine_fails_when_one_that_has_come_ends(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(meet, tmp_path, 0, 3, wanted, lambda group: None)
        while not (tmp_path / CURRENT).exists():
            assert not first.done()
        with socket.socket(socket.AF_UNIX) as second:
            second.connect(str(tmp_path / (tmp_path / CURRENT).read_text() / "0"))
            second.sendall(bytes([1, 0, 0, 0]))
        with pytest.raises(EngineDeadError, match="another engine has ended while they met"):
            first.result()


def test_the_first_engine_says_why_they_cannot_meet(tmp_path: Path) -> None:
    """What others cannot do either: a socket's path is of 107 bytes."""
    (folder := tmp_path / ("long" * 25)).mkdir()
    with pytest.raises(SystemLimitError, match="cannot meet in .*: AF_UNIX path too long") as info:
        meet(folder, 0, 2, wanted, lambda group: None)
    assert "TMPDIR" in info.value.remedy


def test_an_engine_that_cannot_meet_the_others_leaves_what_it_has_begun(tmp_path: Path) -> None:
    closed = list[int]()
    (folder := tmp_path / ("long" * 25)).mkdir()
    together = Together(lambda place: cast(Any, SimpleNamespace(close=lambda: closed.append(1))))
    dealt = SimpleNamespace(shard=Shard(ranks=2), folder=str(folder))
    with pytest.raises(SystemLimitError, match="cannot meet"):
        together._meet(cast(Any, SimpleNamespace(plan=SimpleNamespace(dealt=dealt))), wanted)
    assert closed


def test_groups_leave_one_folder(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(EngineDeadError):
            meet(tmp_path, 0, 2, iter([True, False]).__next__, lambda group: None)
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == [
        (tmp_path / CURRENT).read_text()
    ]


@pytest.mark.parametrize("engine", [0, 1])
def test_one_that_nobody_wants_any_more_waits_for_no_others(engine: int, tmp_path: Path) -> None:
    with pytest.raises(EngineDeadError, match="whoever wanted this engine has ended"):
        meet(tmp_path, engine, 2, lambda: False, lambda group: None)
