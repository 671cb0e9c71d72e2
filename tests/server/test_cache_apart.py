"""The prefix cache of a server with several keys: none learns from it what another asked."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient
from tests.core.scheduler_harness import Harness, prompt_of
from tests.server.server_fakes import FakeLLM

from inferno.server.access.keys import Keys
from inferno.server.access.limits import Account, Key

FILE = """
[keys.alice]
key = "alice"
[keys.bob]
key = "bob"
[keys.one]
key = "one"
cache_group = "team"
[keys.two]
key = "two"
cache_group = "team"
"""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/embeddings": {"input": "hi"},
}


class Salted(FakeLLM):
    """Notes the salt of each request that reaches the engine."""

    def stream_all(self, *args: Any, **kwargs: Any) -> Any:
        self.salts.append(kwargs["cache_salt"])
        return super().stream_all(*args, **kwargs)

    @property
    def salts(self) -> list[str]:
        salts: list[str] = self.__dict__.setdefault("_salts", [])
        return salts


Ask = Callable[..., str]


@pytest.fixture
def ask(tmp_path: Path, client: Any) -> Ask:
    """Sends a request; returns the salt that the engine got."""
    file, llm = tmp_path / "keys.toml", Salted()
    file.write_text(FILE)
    http: TestClient[Any] = client(llm, api_keys=Keys((), file))

    def ask(key: str, path: str = "/v1/completions", **body: Any) -> str:
        headers = {"Authorization": f"Bearer {key}"}
        answer = http.post(path, json={**BODIES[path], **body}, headers=headers)
        assert answer.status_code == 200, answer.text
        return llm.salts[-1]

    return ask


@pytest.mark.parametrize("path", BODIES)
def test_keys_share_no_prefix_over_any_endpoint(ask: Ask, path: str) -> None:
    assert ask("alice", path) == ask("alice", path) != ask("bob", path)


def test_keys_of_one_group_share_prefixes_with_each_other_alone(ask: Ask) -> None:
    assert ask("one") == ask("two") not in (ask("alice"), ask("bob"))


def test_a_request_s_own_salt_parts_what_its_key_has(ask: Ask) -> None:
    salts = [ask(key, cache_salt=salt) for key in ("one", "two", "bob") for salt in ("x", "y")]
    assert salts[0:2] == salts[2:4] and len({*salts, ask("one"), ask("bob")}) == 6


def test_no_key_can_take_the_salt_of_another_for_its_own(ask: Ask) -> None:
    stolen = ask("alice").rstrip("@")
    assert ask("bob", cache_salt=stolen[:128]) != ask("alice")


def test_without_keys_a_salt_is_the_request_s_own(client: Any) -> None:
    llm = Salted()
    http = client(llm)
    for salt in ({}, {"cache_salt": "x"}):
        http.post("/v1/completions", json={"prompt": "hi", **salt})
    assert llm.salts == ["", "x"]


def key_of(digest: bytes, group: str = "") -> Key:
    return Key(name="a", digest=digest, cache_group=group, account=Account("a", None, None, None))


SALTS = st.text(alphabet=st.characters(exclude_characters="@/\\\0"), max_size=12)
KEYS = st.builds(key_of, st.binary(min_size=2, max_size=2), st.text(max_size=6))


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first text takes seconds to draw
@given(KEYS, KEYS, SALTS, SALTS)
def test_salts_are_equal_only_for_one_group_or_key_and_one_salt(
    key: Key, other: Key, salt: str, its: str
) -> None:
    same = key.cache_group == other.cache_group
    if not key.cache_group and not other.cache_group:
        same = key.digest == other.digest
    assert (key.cache_salt(salt) == other.cache_salt(its)) is (same and salt == its)


def test_over_500_pairs_no_key_finds_what_another_computed() -> None:
    alice, bob = key_of(b"a").cache_salt(""), key_of(b"b").cache_salt("")
    harness, draw = Harness(num_blocks=256), random.Random(5)
    for i in range(500):
        secret = prompt_of(i, draw.randrange(8, 60))
        guess = [*secret[: draw.randrange(8, len(secret) + 1)], *prompt_of(i + 1000, 4)]
        hits = {}
        for name, salt, prompt in (("a", alice, secret), ("b", bob, guess), ("c", alice, guess)):
            harness.add(f"{i}{name}", prompt, salt=salt)
            harness.run()
            hits[name] = harness.outputs[f"{i}{name}"][0].num_cached
        assert (hits["a"], hits["b"]) == (0, 0) and hits["c"] >= 4
