"""The contract of keepers of sessions."""

from __future__ import annotations

from inferno.plan import Options, plan_from_json, plan_to_json, reopen, resolve
from inferno.testing import SessionKeeperTests


class TestSession(SessionKeeperTests):
    keeper = "session"
    max_examples = 100


def test_an_engines_process_has_the_keeper_of_the_plan() -> None:
    plan = resolve("demo", Options(device="cpu", max_model_len=256))
    assert plan.sessions is not None
    with reopen(plan_from_json(plan_to_json(plan))) as opened:
        assert opened.parts.session_keeper is not None
        assert opened.parts.session_keeper.name == plan.sessions.name == "session"
