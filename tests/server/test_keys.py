"""API keys from a file: what each may do, and how much."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar.testing import TestClient
from tests.server.server_fakes import FakeLLM

from inferno.errors import LimitError, OptionError, PermissionDeniedError
from inferno.server.access.keys import PEER_UID, Keys, admin_only
from inferno.server.access.limits import Account, Bucket

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def keyed(tmp_path: Path, client: Any) -> Callable[..., TestClient[Any]]:
    """An app with the keys of a file's text."""

    def start(text: str, llm: FakeLLM | None = None, **options: Any) -> TestClient[Any]:
        file = tmp_path / "keys.toml"
        file.write_text(text)
        http: TestClient[Any] = client(llm, api_keys=Keys((), file), **options)
        return http

    return start


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def chat(http: TestClient[Any], key: str, **body: Any) -> Any:
    return http.post(CHAT, json={"messages": MESSAGES, **body}, headers=bearer(key))


def test_a_key_opens_by_its_text_or_its_digest_in_either_header(keyed: Any) -> None:
    digest = hashlib.sha256(b"two").hexdigest()
    http = keyed(f'[keys.a]\nkey = "one"\n[keys.b]\nsha256 = "{digest}"')
    for key in ("one", "two"):
        assert http.get("/v1/models", headers=bearer(key)).status_code == 200
        assert http.get("/v1/models", headers={"X-Api-Key": key}).status_code == 200
    for headers in ({"X-Api-Key": "three"}, {"X-Api-Key": digest}, bearer(digest), {}):
        assert http.get("/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize("key", ["", "schlüssel", "two words", "tab\t", "\x7f"])
def test_a_key_that_no_client_can_send_is_refused_at_the_start(key: str) -> None:
    with pytest.raises(OptionError, match="cannot be sent"):
        Keys([key])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[keys.a]", "needs one of key and sha256"),
        ('[keys.a]\nkey="x"\nsha256="y"', "needs one of"),
        ('[keys.a]\nsha256="abc"', "64 hexadecimal digits"),
        ('[keys.a]\nkey="x"\nrequests_per_min=1', "Did you mean requests_per_minute"),
        ('[keys.a]\nkey="x"\nconcurrency=0', "not at least 1"),
        ('[keys.a]\nkey="x"\nconcurrency=true', "not an integer"),
        ('[keys.a]\nkey="x"\nadmin=1', "not true or false"),
        ('[keys.a]\nkey="x"\nmodels="m"', "not a list of names"),
        ('[keys.a]\nkey="x"\ncache_group=""', "not a name"),
        ('[keys.a]\nkey="x"\ncache_group=1', "not a name"),
        ('[keys.a]\nkey="x"\n[keys.b]\nkey="x"', "the same API key"),
        ("limits = 1", "more than keys"),
        ("[keys", "cannot read the keys"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(OptionError, match=message):
        Keys((), file)
    with pytest.raises(OptionError, match="cannot read"):
        Keys((), tmp_path / "none.toml")


def test_with_an_empty_key_file_every_request_is_refused(keyed: Any) -> None:
    assert keyed("").get("/v1/models").status_code == 401


def test_requests_per_minute_end_in_a_429_that_says_when(keyed: Any) -> None:
    http = keyed('[keys.a]\nkey = "a"\nrequests_per_minute = 2\n[keys.b]\nkey = "b"')
    first = chat(http, "a")
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert chat(http, "a").status_code == 200
    refused = chat(http, "a")
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 25 <= int(refused.headers["retry-after"]) <= 30  # half a minute for one of two
    assert refused.headers["x-should-retry"] == "true"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert chat(http, "b").status_code == 200  # others are not concerned
    assert http.get("/v1/models", headers=bearer("a")).status_code == 200  # reading is free


def test_tokens_per_minute_count_prompt_and_output(keyed: Any) -> None:
    http = keyed('[keys.a]\nkey = "a"\ntokens_per_minute = 200', FakeLLM(reply="x" * 100))
    answer = chat(http, "a")
    used = answer.json()["usage"]["total_tokens"]
    assert 100 < used < 200
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) <= 200 - (used - 100)
    usage = http.get("/v1/keys/usage", headers=bearer("a")).json()["keys"][0]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == used
    refused = chat(http, "a", messages=[{"role": "user", "content": "y" * 100}])
    assert refused.status_code == 429
    assert "tokens per minute" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) > 1


def test_a_refused_prompt_leaves_the_queue(keyed: Any) -> None:
    llm = FakeLLM()
    http = keyed('[keys.a]\nkey = "a"\ntokens_per_minute = 60', llm, max_waiting=0)
    codes = [chat(http, "a").status_code for _ in range(20)]
    assert set(codes) == {200, 429}
    assert codes[-1] == 429  # of the key, and no place is taken
    assert not http.app.state.models.hosted[0].limiter.running


def test_concurrency_is_per_key(live: Any, tmp_path: Path) -> None:
    import httpx

    file = tmp_path / "keys.toml"
    file.write_text('[keys.a]\nkey = "a"\nconcurrency = 1\n[keys.b]\nkey = "b"')
    server = live(FakeLLM(endless=True, delay=0.005), api_keys=Keys((), file))
    body = {"messages": MESSAGES, "max_tokens": 10**6, "stream": True}
    with httpx.stream("POST", server.url + CHAT, json=body, headers=bearer("a")) as running:
        assert running.status_code == 200
        short = {**body, "stream": False, "max_tokens": 1}
        refused = httpx.post(server.url + CHAT, json=short, headers=bearer("a"))
        assert refused.status_code == 429 and "running" in refused.json()["error"]["message"]
        assert httpx.post(server.url + CHAT, json=short, headers=bearer("b")).status_code == 200
    account = next(k.account for k in server.app.state.api_keys.all if k.name == "a")
    from tests.server.conftest import wait_until

    wait_until(lambda: account.running == 0)
    assert httpx.post(server.url + CHAT, json=short, headers=bearer("a")).status_code == 200


def test_models_and_admin_are_per_key(keyed: Any) -> None:
    http = keyed(
        '[keys.a]\nkey = "a"\nmodels = ["other"]\n'
        '[keys.b]\nkey = "b"\nmodels = ["alias"]\n[keys.root]\nkey = "root"\nadmin = true',
        served_names=["m", "alias"],
    )
    refused = chat(http, "a")
    assert refused.status_code == 403
    assert refused.json()["error"]["type"] == "permission_error"
    assert chat(http, "b").status_code == 200
    assert http.get("/v1/models", headers=bearer("a")).json()["data"] == []
    assert len(http.get("/v1/models", headers=bearer("b")).json()["data"]) == 2
    for key, status in (("a", 403), ("root", 200)):
        assert http.get("/v1/models/status", headers=bearer(key)).status_code == status
    assert len(http.get("/v1/keys/usage", headers=bearer("root")).json()["keys"]) == 3
    refused = http.post("/v1/models/unload", json={"model": "m"}, headers=bearer("root"))
    assert refused.status_code == 400 and "only one" in refused.json()["error"]["message"]


def test_priority_is_capped_by_the_key(keyed: Any) -> None:
    seen: list[int] = []

    class Watched(FakeLLM):
        def stream_all(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(kwargs["priority"])
            return super().stream_all(*args, **kwargs)

    http = keyed('[keys.a]\nkey="a"\npriority = 5\n[keys.b]\nkey="b"', Watched())
    for key, priority in (("a", -3), ("a", 9), ("a", None), ("b", -3)):
        chat(http, key, priority=priority)
    assert seen == [5, 9, 5, -3]


def test_keys_are_read_again_and_keep_what_they_used(tmp_path: Path, client: Any) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[keys.a]\nkey = "a"\nrequests_per_minute = 2\n[keys.b]\nkey = "b"')
    keys = Keys((), file)
    http = client(api_keys=keys)
    chat(http, "a")
    file.write_text('[keys.a]\nkey = "a"\nrequests_per_minute = 2\n[keys.c]\nkey = "c"')
    keys.reload()
    assert [chat(http, key).status_code for key in "bc"] == [401, 200]
    assert [chat(http, "a").status_code for _ in range(2)] == [200, 429]
    file.write_text("[keys.a]")
    keys.reload()  # logged, and changes nothing
    assert chat(http, "c").status_code == 200
    file.write_text('[keys.a]\nkey = "a"')
    keys.reload()
    assert chat(http, "a").status_code == 200
    assert http.get("/v1/keys/usage", headers=bearer("a")).json()["keys"][0]["rejected"] == 1


def test_a_request_that_runs_while_keys_are_read_again_gives_its_place_back(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[keys.a]\nkey = "a"\nconcurrency = 1')
    keys = Keys((), file)
    running = keys.all[0].account
    running.enter()
    file.write_text('[keys.a]\nkey = "a"\nconcurrency = 1\npriority = 3')
    keys.reload()
    [key] = keys.all
    assert key.priority == 3
    with pytest.raises(LimitError):
        key.account.enter()
    running.leave()
    key.account.enter()


def test_a_key_cannot_look_at_a_model_that_it_may_not_use(keyed: Any) -> None:
    http = keyed('[keys.a]\nkey = "a"\nmodels = ["other"]\n[keys.b]\nkey = "b"')
    answers = [http.get("/v1/models/fake", headers=bearer(key)) for key in "ab"]
    assert [answer.status_code for answer in answers] == [403, 200]


def test_keys_appear_by_name_only(
    tmp_path: Path, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from inferno.server.observe.logs import log_request

    file = tmp_path / "keys.toml"
    file.write_text(
        '[keys.alice]\nkey = "sk-verysecret"\nadmin = true\n[keys.bob]\nkey = "sk-another"'
    )
    logger = logging.getLogger("inferno")
    propagate, logger.propagate = logger.propagate, True
    keys = Keys((), file)
    with caplog.at_level("INFO"):
        http = client(api_keys=keys, key_metrics=True, on_end=log_request)
        chat(http, "sk-verysecret")
        chat(http, "sk-wrongsecret")
    logger.propagate = propagate
    lines = [getattr(record, "inferno", {}) for record in caplog.records]
    assert [line.get("key") for line in lines if line] == ["alice", None]
    shown = http.get("/metrics", headers=bearer("sk-verysecret")).text
    assert 'inferno_key_requests_total{key="alice"} 1.0' in shown
    other = http.get("/metrics", headers=bearer("sk-another")).text
    assert 'inferno_key_requests_total{key="bob"}' in other and "alice" not in other
    assert "secret" not in shown + json.dumps(lines) + caplog.text + repr(keys.all)


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 1500)), max_size=30),
)
def test_a_bucket_never_gives_more_than_its_rate(
    limit: int, steps: list[tuple[float, int]]
) -> None:
    now = 0.0
    bucket = Bucket(limit, lambda: now)
    taken = 0
    for seconds, amount in steps:
        now += seconds
        if bucket.seconds_until(amount) == 0:
            bucket.take(amount)
            taken += amount
        # A take larger than the bucket goes into debt by what exceeds it.
        assert taken <= limit + now * limit / 60 + max((a for _, a in steps), default=0) + 1e-6
        wait = bucket.seconds_until(amount)
        assert 0 <= wait <= 60 * (1 + 1500 / limit) + 1e-6


def test_a_wait_that_was_told_is_long_enough() -> None:
    now = 0.0
    account = Account("a", None, None, Bucket(60, lambda: now))
    account.take_prompt(50)
    account.take_generated(40)  # a debt of 30
    with pytest.raises(LimitError) as caught:
        account.take_prompt(20)
    wait = int(caught.value.headers["Retry-After"])
    assert wait == 50
    now = float(wait)
    account.take_prompt(20)


def connection(client: tuple[str, int] | None, state: dict[str, Any], **headers: str) -> Any:
    app = SimpleNamespace(state=SimpleNamespace(api_keys=Keys()))
    scope = {"client": client, "state": state}
    return SimpleNamespace(app=app, scope=scope, headers={"host": "localhost:8000", **headers})


@pytest.mark.parametrize(
    ("client", "state", "headers", "allowed"),
    [
        (("127.0.0.1", 5), {}, {}, True),
        (("::1", 5), {}, {"origin": "http://localhost:8000"}, True),
        (("192.0.2.7", 5), {}, {}, False),
        (("127.0.0.1", 5), {}, {"x-forwarded-for": "192.0.2.7"}, False),
        (("127.0.0.1", 5), {}, {"via": "1.1 proxy"}, False),
        (("127.0.0.1", 5), {}, {"cf-connecting-ip": "192.0.2.7"}, False),
        (("127.0.0.1", 5), {}, {"origin": "https://chat.example.org"}, False),
        (None, {}, {}, True),
        (None, {PEER_UID: os.getuid()}, {}, True),
        (None, {PEER_UID: 0}, {}, True),
        (None, {PEER_UID: os.getuid() + 1 or 1}, {}, False),
        (None, {PEER_UID: os.getuid()}, {"x-real-ip": "192.0.2.7"}, False),
    ],
)
def test_without_admin_keys_only_this_machines_own_programs_administer(
    client: tuple[str, int] | None, state: dict[str, Any], headers: dict[str, str], allowed: bool
) -> None:
    with contextlib.nullcontext() if allowed else pytest.raises(PermissionDeniedError):
        asyncio.run(admin_only(connection(client, state, **headers), None))  # type: ignore[arg-type]
