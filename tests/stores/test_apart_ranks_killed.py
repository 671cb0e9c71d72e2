"""A rank of a prefilling engine is killed in a transfer: the other instance goes on with right
tokens, and uses the engine again that was started anew. Processes, elsewhere threads."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.stores.test_apart import SHORT, ask, counted, run, wait_for
from tests.stores.test_apart_ranks import clients, links
from tests.stores.test_stored_ranks import load

from inferno.plan import Options, Plan, resolve
from inferno.process.client import EngineClient
from inferno.process.ranks.keeping_links import KeptLink
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams

pytest.importorskip("inferno_disaggregated")
__all__ = ["links"]

PROMPTS = [[(7 * i + i * i + 3 * k) % 100 for i in range(2000)] for k in range(2)]
REMOTE = 1984
GREEDY = SamplingParams(temperature=0, max_tokens=4)
GIVEN: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "memory": "2GiB", "block_size": 16, "threads": 1,
    "max_model_len": 2048, "max_num_seqs": 4, "max_num_batched_tokens": 16,
}  # fmt: skip


@contextmanager
def serving(plan: Plan) -> Iterator[EngineClient]:
    """The plan's engine, in a process with others for its ranks, which is started anew."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    client = EngineClient(plan)
    asyncio.run_coroutine_threadsafe(client.start(), loop).result(120)
    yield client
    asyncio.run_coroutine_threadsafe(client.close(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def rank_process(client: EngineClient) -> int:
    """The process of the second rank."""
    [rank] = [
        int(child)
        for each in Path(f"/proc/{client.pid}/task").glob("*/children")
        for child in each.read_text().split()
        if b"process.ranks" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return rank


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank", "engine"])
def test_a_prefilling_process_is_killed_in_a_transfer(victim: str, links: list[KeptLink]) -> None:
    url = f"shm://test-{secrets.token_hex(6)}"
    one = load("demo", 1, **GIVEN)
    right = [ask(one, prompt, GREEDY)[0] for prompt in PROMPTS]
    engine = load("demo", 2, decode_with=url, **GIVEN, **SHORT)

    def all_joined() -> bool:
        return all(client.joined for client in clients(engine, links))

    store: Any = engine._store
    usage = store.index.usage
    with serving(resolve("demo", Options(**GIVEN, tp=2, prefill_for=url))) as client:
        wait_for(all_joined)
        for restarts, prompt in enumerate(PROMPTS):
            engine.submit(Request(id="0", token_ids=tuple(prompt), params=GREEDY))
            before, outputs = usage.linked_bytes, []
            while usage.linked_bytes == before:
                outputs += engine.step()
            assert not outputs, "all has come before the kill"
            began = time.monotonic()
            assert client.pid is not None
            os.kill(rank_process(client) if victim == "rank" else client.pid, signal.SIGKILL)
            outputs += run(engine)
            assert [output.token_id for output in outputs] == right[restarts]
            assert time.monotonic() - began < 60, "a prompt waits for what has ended"
            assert counted(outputs).num_remote < REMOTE
            while client.restarts <= restarts or not client.alive:
                assert time.monotonic() - began < 120, "it is not started anew"
                time.sleep(0.05)
            wait_for(all_joined)
            engine._scheduler._groups.reset()
            tokens, first = ask(engine, prompt, GREEDY)
            assert tokens == right[restarts] and first.num_remote == REMOTE, "and used again"
    engine.close()
