"""Who may call the server, and how: hosts, origins, media types, paths and methods."""

from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import OptionError
from inferno.server.http.gate import ANY, hosts_of

BODY = {"prompt": "x", "max_tokens": 5}
COMPLETIONS = "/v1/completions"
PAGE = "https://evil.example"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type",
}


def code(response: Any, status: int) -> str:
    assert response.status_code == status, response.text
    value: str = response.json()["error"]["code"]
    return value


@pytest.mark.parametrize(
    ("address", "host", "status"),
    [
        ("127.0.0.1", "127.0.0.1:8000", 200),
        ("127.0.0.1", "localhost", 200),
        ("127.0.0.1", "LOCALHOST:80", 200),
        ("::1", "[::1]:8000", 200),
        ("127.0.0.7", "127.0.0.7:1", 200),
        ("localhost", "llm.localhost:8000", 200),
        ("127.0.0.1", "evil.example", 403),
        ("127.0.0.1", "127.0.0.1.evil.example", 403),
        ("127.0.0.1", "localhost.evil.example:8000", 403),
        ("0.0.0.0", "evil.example", 200),
        ("192.0.2.1", "gpu.example:8000", 200),
    ],
)
def test_on_loopback_only_this_machines_names_are_served(
    client: Any, address: str, host: str, status: int
) -> None:
    """Else a web page reaches it by a name of its own, whose address it changes."""
    http = client(allowed_hosts=hosts_of(address))
    answer = http.post(COMPLETIONS, json=BODY, headers={"Host": host})
    assert answer.status_code == status
    if status == 403:
        assert code(answer, 403) == "host_not_allowed"
        assert "--allowed-hosts" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("APPLICATION/JSON", 200),
        ("text/plain", 415),
        ("multipart/form-data", 415),
        ("application/x-www-form-urlencoded", 200),
        ("", 200),
    ],
)
def test_json_is_read_unless_it_says_to_be_something_else(
    client: Any, kind: str, status: int
) -> None:
    answer = client().post(COMPLETIONS, content=b'{"prompt": "x"}', headers={"Content-Type": kind})
    assert answer.status_code == status
    if status == 415:
        assert code(answer, 415) == "unsupported_media_type"


@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:3000"])
def test_a_web_page_of_another_origin_cannot_send_anything(client: Any, origin: str) -> None:
    http = client()
    headers = {"Origin": origin, "Host": "localhost:8000"}
    assert code(http.post(COMPLETIONS, json=BODY, headers=headers), 403) == "origin_not_allowed"
    plain = http.post(COMPLETIONS, content=b'{"prompt": "x"}', headers=headers)
    assert code(plain, 403) == "origin_not_allowed"
    read = http.get("/v1/models", headers=headers)
    assert read.status_code == 200 and "access-control-allow-origin" not in read.headers
    assert code(http.options(COMPLETIONS, headers={**headers, **PREFLIGHT}), 403)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_servers_own_page_may(client: Any, scheme: str) -> None:
    headers = {"Origin": f"{scheme}://llm.example:8000", "Host": "llm.example:8000"}
    assert client().post(COMPLETIONS, json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize("allowed", [PAGE, ANY])
def test_an_allowed_page_needs_a_key_but_its_preflight_does_not(client: Any, allowed: str) -> None:
    http = client(api_keys=["sesame"], cors_origins=["https://other.example", allowed])
    headers = {"Origin": PAGE}
    preflight = http.options(COMPLETIONS, headers={**headers, **PREFLIGHT})
    assert preflight.status_code == 204 and preflight.content == b""
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    refused = http.post(COMPLETIONS, json=BODY, headers=headers)
    assert refused.status_code == 401, "and the page can read why"
    assert refused.headers["access-control-allow-origin"] == PAGE
    headers["Authorization"] = "Bearer sesame"
    answer = http.post(COMPLETIONS, json=BODY, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["evil.example", "https://evil.example/", "https://a b", ""])
def test_what_is_no_origin_is_refused_at_the_start(client: Any, origin: str) -> None:
    with pytest.raises(OptionError, match="is not an origin"):
        client(cors_origins=[origin])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/completions"),
        ("POST", "/v1/tokenize"),
        ("GET", "/models"),
        ("GET", "/models/fake"),
        ("GET", "/v1/health"),
        ("GET", "/v1/models/"),
    ],
)
def test_endpoints_are_served_with_and_without_v1(client: Any, method: str, path: str) -> None:
    body = BODY if method == "POST" and "token" not in path else {"prompt": "x"}
    answer = client().request(method, path, json=body if method == "POST" else None)
    assert answer.status_code == 200, answer.text


def test_head_is_answered_like_get_but_without_a_body(client: Any) -> None:
    http = client(api_keys=["sesame"])
    for path in ("/health", "/ping", "/v1/health"):
        answer = http.head(path)
        assert answer.status_code == 200 and answer.content == b""
    assert http.head("/v1/models").status_code == 401
    assert http.head(COMPLETIONS).status_code == 405


def test_an_unknown_path_names_the_nearest(client: Any) -> None:
    answer = client().post("/v1/chat/completion", json={})
    assert code(answer, 404) == "not_found"
    assert "/v1/chat/completions" in answer.json()["error"]["message"]
    assert "/schema" in client().get("/x" * 500).json()["error"]["message"]


def test_a_wrong_method_names_the_right_one(client: Any) -> None:
    answer = client().get(COMPLETIONS)
    assert code(answer, 405) == "method_not_allowed" and "POST" in answer.headers["allow"]
    assert "POST" in answer.json()["error"]["message"]
    plain = client(api_keys=["sesame"]).options(COMPLETIONS)
    assert plain.status_code == 204 and "POST" in plain.headers["allow"]


def test_refusals_have_openais_format(client: Any) -> None:
    http = client(api_keys=["k"], allowed_hosts=["testserver.local"], max_body_bytes=1000)
    key, path = {"X-Api-Key": "k"}, "/v1/chat/completions"
    answers = [
        http.put(path, headers=key),
        http.post(path, json={}, headers={**key, "Host": "evil.example"}),
        http.post(path, json={}, headers={**key, "Origin": PAGE}),
        http.post(path, json={}),
        http.post(path, json={"x": "x" * 2000}, headers=key),
    ]
    assert answers[-1].status_code == 413 and "--max-body-bytes" in answers[-1].text
    for answer in answers:
        assert answer.status_code in (401, 403, 405, 413), answer.text
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_an_allowed_page_may_read_limits_and_ids(client: Any) -> None:
    http = client(cors_origins=[PAGE])
    exposed = http.get("/health", headers={"Origin": PAGE}).headers["Access-Control-Expose-Headers"]
    assert {"x-request-id", "retry-after", "x-ratelimit-remaining-tokens"} <= set(
        exposed.split(", ")
    )
