"""Ranks of several machines, which are threads here: they join over TCP, guarded by a token."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import RankStart
from inferno.core.engine import Engine
from inferno.errors import CheckpointError, EngineDeadError, InfernoError, OptionError, PluginError
from inferno.plan import Opened, open_model
from inferno.plan import opened as opening
from inferno.process.ranks import following, identity, joining, messages
from inferno.process.ranks.following import run
from inferno.process.ranks.greeting import MAGIC, connect
from inferno.process.ranks.joining import Joining, join
from inferno.process.ranks.leading import LeadingHome
from inferno.process.ranks.machines import Machines
from inferno.process.ranks.wire import Wire
from inferno.testing.thread_ranks import GREEDY, SEEDED, answers, load_shared, tokens_of
from inferno.testing.tiny import small_options, without_kernels

pytest.importorskip("inferno_demo")

TOKEN = b"a token of the machines"
PROMPTS = [[207, 932, 879], list(range(30, 70)), [5]]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return without_kernels(load_catalog())


@pytest.fixture(scope="module")
def alone(catalog: Catalog) -> Iterator[Engine]:
    engine = load_shared("demo", catalog, 1)
    yield engine
    engine.close()


class ThreadRank:
    """A rank in a thread (`contracts.RankProcess`), which ends as a process would."""

    def __init__(self, catalog: Catalog, what: RankStart) -> None:
        self.killed, self.how = threading.Event(), Future[str]()
        self._thread = threading.Thread(target=self._run, args=(catalog, what), daemon=True)
        self._thread.start()

    def _run(self, catalog: Catalog, what: RankStart) -> None:
        how = "ended with code 0"
        try:
            run(Path(what.folder), what.rank, catalog, alive=lambda: not self.killed.is_set())
        except BaseException:
            how = "ended with code 1"
        if not self.how.done():
            self.how.set_result(how)

    def wait(self) -> str:
        return self.how.result()

    def is_stopped(self) -> bool:
        return False

    def kill(self) -> None:
        self.killed.set()


class Other:
    """Another machine, in a thread."""

    def __init__(self, catalog: Catalog, port: int, **asked: Any) -> None:
        given = {"host": "127.0.0.1", "port": port, "token": TOKEN, "wait": 5.0, "stays": False}
        self.ranks = list[ThreadRank]()
        self.ending = Future[BaseException | None]()
        asking = Joining(**{**given, **asked})
        threading.Thread(target=self._run, args=(catalog, asking), daemon=True).start()

    def _run(self, catalog: Catalog, asked: Joining) -> None:
        def start(what: RankStart) -> ThreadRank:
            self.ranks.append(ThreadRank(catalog, what))
            return self.ranks[-1]

        try:
            join(asked, catalog, start)
        except BaseException as error:
            self.ending.set_result(error)
        else:
            self.ending.set_result(None)

    def refusal(self) -> BaseException | None:
        """Return what it ended with."""
        return self.ending.result(30)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    (tmp_path / "token").write_bytes(TOKEN + b"\n")
    return tmp_path / "token"


First = Callable[..., Opened]


@pytest.fixture
def first(catalog: Catalog, port: int, token_file: Path) -> Iterator[First]:
    """Opens the demo's model for several machines."""
    opened = list[Opened]()

    def open_(ranks: int = 2, nodes: int = 2, **options: Any) -> Opened:
        given = {"rank_host": "127.0.0.1", "rank_port": port, "rank_token_file": str(token_file)}
        settings = small_options({**given, "tp": ranks, "nodes": nodes, **options})
        opened.append(open_model("demo", settings, catalog))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


def start_local(catalog: Catalog) -> Callable[[RankStart], ThreadRank]:
    return partial(ThreadRank, catalog)


def load(catalog: Catalog, opened: Opened) -> Engine:
    """Load the first machine's engine, once the others have joined."""
    return Engine.load(opened, home_of=LeadingHome.starting(start_local(catalog)))


@pytest.mark.parametrize(
    ("ranks", "nodes", "stages"),
    [
        (2, 2, 1),
        pytest.param(1, 2, 2, marks=pytest.mark.slow),
        pytest.param(4, 2, 1, marks=pytest.mark.slow),
        pytest.param(2, 2, 2, marks=pytest.mark.slow),
    ],
)
def test_machines_give_the_tokens_of_one_process_and_end_in_peace(
    catalog: Catalog, first: First, port: int, alone: Engine, ranks: int, nodes: int, stages: int
) -> None:
    other = Other(catalog, port)
    engine = load(catalog, first(ranks, nodes, pp=stages))
    for params in (GREEDY, SEEDED):
        ours, theirs = (answers(each, PROMPTS, params) for each in (engine, alone))
        assert tokens_of(ours) == tokens_of(theirs)
    engine.close()
    assert other.refusal() is None
    assert len(other.ranks) == ranks * stages // nodes


@pytest.mark.slow
def test_each_machine_keeps_its_part_of_a_block(
    catalog: Catalog, first: First, port: int, alone: Engine, tmp_path: Path
) -> None:
    """In the folder of that name there, which is one here."""
    pytest.importorskip("inferno_offload")
    cached = list[int]()
    for _ in range(2):
        other = Other(catalog, port)
        opened = first(kv_store=str(tmp_path / "kv"))
        engine = load(catalog, opened)
        ours, theirs = (answers(each, PROMPTS, GREEDY) for each in (engine, alone))
        assert tokens_of(ours) == tokens_of(theirs)
        cached.append(ours[1][0].num_cached)
        engine.close()
        opened.close()
        assert other.refusal() is None
    assert cached == [0, 32]
    assert {path.parent.parent.name for path in (tmp_path / "kv").glob("*/*/data")} == {
        "rank-0",
        "rank-1",
    }


@pytest.mark.slow
def test_processes_of_a_launcher_are_the_ranks_that_it_says(
    catalog: Catalog, first: First, port: int, alone: Engine
) -> None:
    """In whatever order they come; each brings one."""
    others = [Other(catalog, port, rank=rank) for rank in (2, 1)]
    engine = load(catalog, first(3, 1, executor="environment"))
    assert tokens_of(answers(engine, PROMPTS, GREEDY)) == tokens_of(answers(alone, PROMPTS, GREEDY))
    engine.close()
    assert [other.refusal() for other in others] == [None, None]


def test_a_draft_model_is_needed_on_the_first_machine_alone(
    catalog: Catalog, first: First, port: int, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine has no copy of it, and is told the drafts."""
    opened_there, reopen = list[Any](), opening.reopen

    def seen(plan: Any, *given: Any) -> Any:
        opened_there.append(plan.speculation)
        return reopen(plan, *given)

    monkeypatch.setattr(joining, "reopen", seen)
    other = Other(catalog, port)
    engine = load(catalog, first(speculative="demo"))
    ours, theirs = (tokens_of(answers(each, PROMPTS, GREEDY)) for each in (engine, alone))
    stats = engine.stats()
    engine.close()
    assert ours == theirs and stats.accepted_tokens > 0
    assert other.refusal() is None and opened_there[0].draft is None


# --- who may join ---------------------------------------------------------------------------------


def test_only_those_who_know_the_token_join_and_junk_costs_nothing(
    catalog: Catalog, first: First, port: int, alone: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine waits on, for one that may."""
    loading = Future[Engine]()
    opened = first()
    thread = threading.Thread(target=lambda: loading.set_result(load(catalog, opened)))
    thread.start()
    wrong = Other(catalog, port, token=b"another token of others").refusal()
    assert isinstance(wrong, OptionError) and "knows another token" in wrong.cause
    assert "rank-token-file" in wrong.remedy
    for junk in (b"", b"GET / HTTP/1.1\r\n\r\n" * 100, MAGIC + bytes(64), bytes(1 << 20)):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            try:
                stranger.sendall(junk)
                stranger.shutdown(socket.SHUT_WR)
                stranger.settimeout(10)
                while stranger.recv(4096):
                    pass
            except OSError:
                pass
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    other = Other(catalog, port)
    engine = loading.result(60)
    for each in silent:
        each.close()
    assert tokens_of(answers(engine, PROMPTS, GREEDY)) == tokens_of(answers(alone, PROMPTS, GREEDY))
    engine.close()
    assert other.refusal() is None
    assert "127.0.0.1 was refused: it does not know the token" in caplog.text
    assert TOKEN.decode() not in caplog.text


def test_what_is_no_rank_of_this_group_is_sent_away(first: First, port: int) -> None:
    """Even if it knows the token: it may be of an engine that has ended."""
    machines = Machines(first())
    machines.open()
    for kind, body in [
        (messages.RANK, messages.encode(messages.ArrivingRank("of yesterday", 1))),
        (messages.RANK, b"\xc1 no msgpack"),
        (b"?", b""),
        (messages.ARRIVAL, messages.encode({"name": 1})),
    ]:
        wire = Wire(connect("127.0.0.1", port, TOKEN))
        wire.send(kind, body)
        with pytest.raises(EOFError):
            wire.receive(10)
        wire.close()
    assert machines.arrived.empty() and machines.awaited == 1
    machines.close()


def test_whoever_listens_there_must_know_the_token_too(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            connection.sendall(MAGIC + bytes(32))
            message = connection.recv(4096)
            connection.sendall(message[-32:])  # its own proof is none of ours
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(OptionError, match="knows another token"):
            connect("127.0.0.1", port, TOKEN)


def test_another_version_is_refused_with_both_named(
    catalog: Catalog,
    first: First,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = identity.versions()
    machines = Machines(first())
    machines.open()
    monkeypatch.setattr(identity, "versions", lambda: {**here, "torch": "1.0"})
    refused = Other(catalog, port).refusal()
    assert isinstance(refused, PluginError) and "has torch 1.0, and the first" in refused.cause
    assert here["torch"] in refused.cause and "same versions" in refused.remedy
    monkeypatch.setattr(identity, "versions", lambda: {**here, "torch's instructions": "NONE"})
    refused = Other(catalog, port).refusal()
    assert isinstance(refused, PluginError) and "ATEN_CPU_CAPABILITY" in refused.remedy
    assert machines.awaited == 1 and "has torch 1.0, and the first machine" in caplog.text
    machines.close()


def test_kernels_of_another_level_are_refused(
    catalog: Catalog, first: First, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(_: Opened) -> None:
        raise PluginError("rank 1 runs cpu at avx2, rank 0 at amx", "Set the same level.")

    machines = Machines(first())
    machines.open()
    monkeypatch.setattr(joining, "agree_on_levels", other)
    refused = Other(catalog, port).refusal()
    assert isinstance(refused, PluginError) and "avx2, rank 0 at amx" in refused.cause
    until(lambda: machines.awaited == 1)
    machines.close()


def until(true: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.01)


@pytest.mark.parametrize("part", ["config", "tensors", "values"])
def test_another_model_is_refused(
    catalog: Catalog, first: First, port: int, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    machines = Machines(first())
    machines.open()
    here = identity.model_identity
    monkeypatch.setattr(identity, "model_identity", lambda c: {**here(c), part: "another"})
    refused = Other(catalog, port).refusal()
    assert isinstance(refused, CheckpointError) and refused.cause.endswith(f"other {part}")
    assert "--model" in refused.remedy
    machines.close()


def test_a_model_is_known_by_its_config_its_tensors_and_their_values(first: First) -> None:
    checkpoint = first().checkpoint
    same = identity.model_identity(checkpoint)

    class Changed:
        """The checkpoint with one thing changed."""

        config, tensors = checkpoint.config, checkpoint.tensors

        def read(self, name: str) -> Any:
            return checkpoint.read(name)

    assert identity.model_identity(Changed()) == same  # type: ignore[arg-type]
    other = Changed()
    other.config = {**checkpoint.config, "rope_theta": 1.0}
    assert identity.model_identity(other)["config"] != same["config"]  # type: ignore[arg-type]
    other.tensors = {**list_without_first(checkpoint.tensors)}
    assert identity.model_identity(other)["tensors"] != same["tensors"]  # type: ignore[arg-type]
    other = Changed()
    other.read = lambda name: checkpoint.read(name) * 1.01  # type: ignore[method-assign]
    assert identity.model_identity(other)["values"] != same["values"]  # type: ignore[arg-type]


def list_without_first(tensors: Any) -> dict[str, Any]:
    return dict([*tensors.items()][1:])


def test_a_model_that_is_not_there_is_asked_for(catalog: Catalog, first: First, port: int) -> None:
    machines = Machines(first())
    machines.open()
    refused = Other(catalog, port, model="/nowhere/model").refusal()
    assert isinstance(refused, CheckpointError) and "cannot be opened here" in refused.cause
    assert "--model PATH" in refused.remedy
    machines.close()


@pytest.mark.slow
def test_a_machine_too_many_waits_until_it_is_needed(
    catalog: Catalog, first: First, port: int, alone: Engine
) -> None:
    other = Other(catalog, port, stays=True, wait=None)
    engine = load(catalog, first())
    spare = Other(catalog, port, wait=None)
    time.sleep(0.5)
    assert not spare.ranks and not spare.ending.done()
    other.ranks[0].kill()
    with pytest.raises(EngineDeadError, match="rank 1 of 2"):
        for _ in range(100):
            engine.rest()
            time.sleep(0.05)
    engine.close()
    engine = load(catalog, first())
    assert tokens_of(answers(engine, PROMPTS, GREEDY)) == tokens_of(answers(alone, PROMPTS, GREEDY))
    engine.close()


def test_a_first_machine_that_never_comes_is_waited_for_as_long_as_is_asked(port: int) -> None:
    with pytest.raises(EngineDeadError, match=f"127.0.0.1:{port} cannot be joined") as caught:
        join(Joining(host="127.0.0.1", port=port, token=TOKEN, wait=0.0))
    assert "--wait" in caught.value.remedy


def test_an_engine_that_nobody_wants_any_more_waits_for_no_machine(
    catalog: Catalog, first: First
) -> None:
    home = LeadingHome.starting(start_local(catalog), wanted=lambda: False)
    with pytest.raises(EngineDeadError, match="whoever wanted this engine"):
        Engine.load(first(), home_of=home)


def test_a_port_that_is_taken_is_named(first: First, port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(OptionError, match=f"cannot join at 127.0.0.1:{port}") as caught,
    ):
        Machines(first())
    assert "--rank-port" in caught.value.remedy


# --- how machines end -----------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_traceback_of_another_machine_reaches_the_user(
    catalog: Catalog, first: First, port: int, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no room on that machine")

    def hear_late(machines: Machines, connection: socket.socket, host: str) -> Any:
        time.sleep(0.3)  # what a rank says comes with its greeting
        return hear(machines, connection, host)

    hear = Machines._hear
    if busy:
        monkeypatch.setattr(Machines, "_hear", hear_late)
    monkeypatch.setattr(following, "load_model", fails)
    other = Other(catalog, port, wait=1.0)
    with pytest.raises(EngineDeadError, match="rank 1.*no room on that machine") as caught:
        load(catalog, first())
    assert "Traceback" in caught.value.detail and "in fails" in caught.value.detail
    assert isinstance(other.refusal(), InfernoError)


def test_machines_join_again_after_a_failure_and_the_next_answer_is_right(
    catalog: Catalog, first: First, port: int, alone: Engine
) -> None:
    other = Other(catalog, port, stays=True, wait=None)
    wanted = tokens_of(answers(alone, PROMPTS, GREEDY))
    engine = load(catalog, first())
    assert tokens_of(answers(engine, PROMPTS, GREEDY)) == wanted
    other.ranks[0].how.set_result("was killed by SIGKILL")
    with pytest.raises(EngineDeadError, match=r"rank 1 of 2 was killed by SIGKILL on .*127\.0"):
        for _ in range(100):
            engine.rest()
            time.sleep(0.05)
    engine.close()
    engine = load(catalog, first())
    assert tokens_of(answers(engine, PROMPTS, GREEDY)) == wanted and len(other.ranks) == 2
    engine.close()


def test_a_process_that_starts_machines_and_fails_ends_the_engine(
    catalog: Catalog, first: First
) -> None:
    class Failed:
        def wait(self) -> str:
            return "ended with code 7"

        def is_stopped(self) -> bool:
            return False

        def kill(self) -> None: ...

    seen = list[Any]()

    def launch(what: Any) -> list[Failed]:
        seen.append(what)
        return [Failed()]

    home = LeadingHome.starting(start_local(catalog), launch=launch)
    with pytest.raises(EngineDeadError, match="another machine's process ended with code 7"):
        Engine.load(first(), home_of=home)
    [what] = seen
    assert what.machines == 1 and what.ranks == 1 and what.token == TOKEN.decode()
    assert what.address in what.command and TOKEN.decode() not in repr(what)

    def fails(what: Any) -> Any:
        raise OSError("no cluster")

    home = LeadingHome.starting(start_local(catalog), launch=fails)
    with pytest.raises(EngineDeadError, match="could not be started: no cluster"):
        Engine.load(first(), home_of=home)


def test_a_plan_says_which_machine_has_which_ranks(first: First) -> None:
    plan = first(4, 2).plan
    assert plan.ranks is not None and plan.ranks.join is not None
    assert (plan.ranks.here, plan.ranks.started, plan.ranks.join.each) == (2, 2, 2)
    assert plan.nbytes == 2 * sum(item.nbytes for item in plan.memory)
    launched = evolve(plan.ranks, join=evolve(plan.ranks.join, each=1, nodes=1))
    assert (launched.here, launched.started) == (4, 1)
