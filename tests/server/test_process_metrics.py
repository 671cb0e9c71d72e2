"""Metrics of engine processes, the checker of grammars, the store, wrong keys and the loop."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.server_fakes import FakeLLM

from inferno.contracts import Link, LinkedInstance
from inferno.plan.store_use import StoreUse
from inferno.process.grammar_check import GrammarChecker
from inferno.process.health import Health
from inferno.server.access.keys import Keys
from inferno.server.responses.store import Store


def exported(http: Any, **options: Any) -> dict[str, float]:
    """The values of /metrics, by name without labels, and by name with the kind."""
    text = http.get("/metrics", **options).text
    rows = re.findall(r"^(\w+)(\{[^}]*\})? ([-+.\w]+)$", text, re.MULTILINE)
    kinds = {f"{name} {kind}": value for name, labels, value in rows for kind in kind_of(labels)}
    return {name: float(value) for name, value in [*((n, v) for n, _, v in rows), *kinds.items()]}


def kind_of(labels: str) -> list[str]:
    return re.findall(r'[{,]kind="(\w+)"', labels)


def test_an_engine_s_health_is_exported(client: Any) -> None:
    llm = FakeLLM()
    llm.health = Health(
        restarts=1,
        failed_starts=2,
        silence=3.5,
        still=4.5,
        given_up=5,
        checks=6,
        check_seconds=7.5,
        checker_kills=8,
    )
    values = exported(client(llm))
    names = ["restarts_total", "failed_starts", "silence_seconds", "still_seconds"]
    names += ["given_up_requests_total"]
    assert [values[f"inferno_engine_{name}"] for name in names] == [1, 2, 3.5, 4.5, 5]
    names = ["checks_total", "check_seconds_total", "checker_kills_total"]
    assert [values[f"inferno_grammar_{name}"] for name in names] == [6, 7.5, 8]


def test_instances_that_compute_prompts_are_exported(client: Any) -> None:
    llm = FakeLLM()
    llm.stats.instances = {
        "shm://a": LinkedInstance(True, 2, 3),
        "shm://b": LinkedInstance(False, 0, 5, {"lost": 4}),
    }
    link = Link(role="decode", url="shm://a, shm://b")
    llm.plan = SimpleNamespace(**{**vars(llm.plan), "store": StoreUse(link=link)})
    http = client(llm)
    told = {
        (sample.name, sample.labels["prefill"], sample.labels.get("cause")): sample.value
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for sample in family.samples
        if "prefill" in sample.labels
    }
    assert told == {
        ("inferno_kv_link_connected", "shm://a", None): 1,
        ("inferno_kv_link_waiting", "shm://a", None): 2,
        ("inferno_kv_link_instance_prompts_total", "shm://a", None): 3,
        ("inferno_kv_link_connected", "shm://b", None): 0,
        ("inferno_kv_link_waiting", "shm://b", None): 0,
        ("inferno_kv_link_instance_prompts_total", "shm://b", None): 5,
        ("inferno_kv_link_instance_failures_total", "shm://b", "lost"): 4,
    }
    health = http.get("/health")
    assert health.status_code == 200, "prompts are computed here"
    assert health.json() == {
        "status": "ok",
        "prefill": {"fake": {"0": "connected", "1": "disconnected"}},
    }


def test_the_store_and_wrong_keys_are_exported(client: Any, tmp_path: Path) -> None:
    http = client(api_keys=Keys(["k"]), store=Store(tmp_path / "store.db"))
    right = {"headers": {"Authorization": "Bearer k"}}
    before = exported(http, **right)
    used = [f"inferno_store_used_bytes {kind}" for kind in ("responses", "files")]
    assert [before[name] for name in used] == [0, 0] and before["inferno_store_free_bytes"] > 0
    assert http.post("/v1/responses", json={"input": "hi"}, **right).status_code == 200
    for _ in range(31):
        http.get("/v1/models", headers={"Authorization": "Bearer wrong"})
    values = exported(http, **right)
    assert values[used[0]] > 100 and values[used[1]] == 0
    assert values["inferno_wrong_api_keys_total"] == 30
    assert values["inferno_refused_api_keys_total"] == 1


def test_the_bytes_of_files_are_exported_until_they_are_deleted(
    client: Any, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store.db")
    http, used = client(store=store), "inferno_store_used_bytes files"
    sent = {"files": {"file": ("in.jsonl", b"x" * 5000)}, "data": {"purpose": "batch"}}
    ids = [http.post("/v1/files", **sent).json()["id"] for _ in range(2)]
    both = exported(http)[used]
    assert both > 10_000
    assert http.delete(f"/v1/files/{ids[0]}").status_code == 200
    assert exported(http)[used] == both / 2


def test_what_waits_is_exported_by_key_and_how_long(client: Any) -> None:
    llm = FakeLLM()
    http = client(llm, api_keys=Keys(["k"]), key_metrics=True)
    right = {"headers": {"Authorization": "Bearer k"}}
    http.post("/v1/completions", json={"prompt": "hi"}, **right)
    values = exported(http, **right)
    assert values["inferno_key_outputs_waiting"] == 0
    assert values["inferno_expected_wait_seconds"] == 0


def test_a_loop_that_is_late_is_seen(client: Any) -> None:
    http = client()
    metrics = http.app.state.metrics
    for lag in (-0.01, 0.002, 3.0):
        metrics.lagged(lag)
    values = exported(http)
    assert values["inferno_event_loop_lag_seconds_count"] == 3
    assert values["inferno_event_loop_lag_seconds_sum"] == pytest.approx(3.002)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="POSIX only")
def test_a_checker_counts_what_it_was_asked_and_what_ended_it() -> None:
    """With a process that never answers."""

    class Slow(GrammarChecker):
        async def _started(self) -> Any:
            self._process = process = await asyncio.create_subprocess_exec(
                "sleep", "60", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            return process

    from inferno.contracts import GrammarSpec
    from inferno.errors import CheckerBusyError

    async def run() -> None:
        checker, began = Slow(None, seconds=0.02), time.monotonic()  # type: ignore[arg-type]
        with pytest.raises(CheckerBusyError):
            await checker.check(GrammarSpec(kind="regex", text="a"))
        assert (checker.checks, checker.kills) == (1, 1)
        assert 0 < checker.seconds <= time.monotonic() - began

    asyncio.run(run())
