"""Several instances compute prompts for one: if one ends, the others compute the rest."""

from __future__ import annotations

import secrets
import signal

import pytest
from tests.stores.test_apart import (
    GREEDY,
    PROMPTS,
    SHORT,
    Prefiller,
    ask,
    counted,
    joined,
    run,
    wait_for,
)
from tests.stores.test_apart_killed import instance
from tests.stores.test_stored_caches import load

from inferno.request.requests import Request


def urls() -> tuple[str, str]:
    name = f"shm://test-{secrets.token_hex(6)}"
    return f"{name}-a", f"{name}-b"


def test_prompts_are_shared_out_and_one_instance_may_end() -> None:
    right = [ask(load("demo"), prompt)[0] for prompt in PROMPTS]
    both = urls()
    one, other = (Prefiller("demo", url) for url in both)
    engine = load("demo", decode_with=",".join(both), **SHORT)
    wait_for(lambda: joined(engine))

    def answers() -> list[tuple[list[int | None], int]]:
        engine._scheduler._groups.reset()
        for i, prompt in enumerate(PROMPTS):
            engine.submit(Request(id=str(i), token_ids=tuple(prompt), params=GREEDY))
        outputs = run(engine)
        mine = [[o for o in outputs if o.request_id == str(i)] for i in range(len(PROMPTS))]
        return [([o.token_id for o in each], counted(each).num_remote or 0) for each in mine]

    expected = [
        (tokens, (len(prompt) - 1) // 16 * 16)
        for tokens, prompt in zip(right, PROMPTS, strict=True)
    ]
    assert answers() == expected
    assert one.engine.stats().linked_prompts + other.engine.stats().linked_prompts == 3
    assert one.engine.stats().linked_prompts and other.engine.stats().linked_prompts
    before = [each.prompts for each in engine.stats().instances.values()]
    assert answers() == expected
    now = [each.prompts for each in engine.stats().instances.values()]
    assert now == [2 * each for each in before], "each has them in its prefix cache"
    one.pauses = True
    assert one.paused.wait(30)
    engine._scheduler._groups.reset()
    for i, prompt in enumerate(PROMPTS):
        engine.submit(Request(id=str(i), token_ids=tuple(prompt), params=GREEDY))
    engine.step()
    one.close()
    outputs = run(engine)
    firsts = {o.request_id: o.num_remote for o in reversed(outputs) if o.num_remote}
    assert firsts == {str(i): remote for i, (_, remote) in enumerate(expected)}
    for i, tokens in enumerate(right):
        assert [o.token_id for o in outputs if o.request_id == str(i)] == tokens
    stats = engine.stats()
    assert stats.fallbacks == {}
    assert stats.instances[both[0]].failures == {"lost": before[0]}
    assert [each.connected for each in stats.instances.values()] == [False, True]
    engine.close()
    other.close()


def test_each_address_that_refuses_is_named(caplog: pytest.LogCaptureFixture) -> None:
    both = urls()
    one, other = Prefiller("demo", both[0], kv_cache_dtype="int8"), Prefiller("demo", both[1])
    engine = load("demo", decode_with=",".join(both), **SHORT)
    wait_for(lambda: f"{both[0]} refuses" in caplog.text)
    wait_for(lambda: engine.stats().instances[both[1]].connected)
    assert ask(engine, PROMPTS[0])[1].num_remote == 96
    assert engine.stats().fallbacks == {} and f"{both[1]} refuses" not in caplog.text
    engine.close()
    one.close()
    other.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Blocks", "Done"])
def test_a_process_is_killed_and_another_goes_on(kind: str) -> None:
    right = [ask(load("demo"), prompt)[0] for prompt in PROMPTS]
    both = urls()
    with instance("prefill", both[0], kind) as killed, instance("prefill", both[1], "nothing"):
        engine = load("demo", decode_with=",".join(both), **SHORT)
        wait_for(lambda: joined(engine))
        tokens, first = ask(engine, PROMPTS[2])
        assert tokens == right[2] and first.num_remote == 128
        assert killed.wait() == -signal.SIGKILL
        for prompt, expected in zip(PROMPTS, right, strict=True):
            engine._scheduler._groups.reset()
            tokens, first = ask(engine, prompt)
            assert tokens == expected and first.num_remote == (len(prompt) - 1) // 16 * 16
        stats = engine.stats()
        assert stats.instances[both[0]].failures == {"lost": 1}
        assert stats.instances[both[1]].prompts == 4 - (kind == "Done")
        engine.close()
