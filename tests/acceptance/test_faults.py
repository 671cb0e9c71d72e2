"""What one client sends harms no other: a server process answers it with a 4xx and goes on."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest
from tests.acceptance.clients.words import HELLO

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def chat(**changes: Any) -> bytes:
    return json.dumps({"messages": MESSAGES, **changes}).encode()


def raw(member: str) -> bytes:
    """A chat with a member that Python's own encoder would not write."""
    return f'{{"messages":[{{"role":"user","content":"a"}}],{member}}}'.encode()


def called(arguments: str) -> bytes:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "call_0000", "type": "function", "function": function}
    return chat(messages=[*MESSAGES, {"role": "assistant", "tool_calls": [call]}])


def offered(parameters: Any) -> bytes:
    function = {"name": "f", "parameters": parameters}
    return chat(tools=[{"type": "function", "function": function}])


TEXT = "/v1/completions"
HOSTILE: dict[str, tuple[str, bytes]] = {
    "malformed UTF-8": (CHAT, b'{"messages":[{"role":"user","content":"\xff\xfe"}]}'),
    "a lone surrogate": (CHAT, b'{"messages":[{"role":"user","content":"\\ud800"}]}'),
    "UTF-16": (CHAT, '{"messages":[]}'.encode("utf-16")),
    "not an object": (CHAT, b"[]"),
    "cut off": (CHAT, b'{"messages":['),
    "nested lists": (CHAT, nested(100_000).encode()),
    "nested content": (CHAT, chat(messages=[{"role": "user", "content": json.loads(nested(400))}])),
    "nested template variables": (CHAT, raw(f'"chat_template_kwargs":{{"tools":{nested(900)}}}')),
    "a nested schema": (CHAT, offered(json.loads(nested(400)))),
    "a call's nested arguments": (CHAT, called(nested(900))),
    "a role of a megabyte": (CHAT, chat(messages=[{"role": "a" * 2**20, "content": ""}])),
    "messages as a template variable": (CHAT, chat(chat_template_kwargs={"messages": []})),
    "tools as a template variable": (CHAT, chat(chat_template_kwargs={"tools": []})),
    "an infinite temperature": (CHAT, raw('"temperature":1e999')),
    "an endless integer": (CHAT, raw(f'"seed":1{"0" * 5000}')),
    "a hundred thousand stop strings": (CHAT, chat(stop=["a"] * 100_000)),
    "a million outputs": (CHAT, chat(n=10**6)),
    "a million prompts": (TEXT, json.dumps({"prompt": ["a"] * 10**6}).encode()),
    "a prompt of ten megabytes": (TEXT, json.dumps({"prompt": "a " * 5 * 2**20}).encode()),
    "ids that are none": ("/detokenize", b'{"tokens":[-1,99999999999,3.5]}'),
    "a path as the model": (CHAT, chat(model="../../../../etc/passwd")),
    "a NUL in the model": (CHAT, chat(model="fake\0")),
    "a path as the cache salt": (CHAT, chat(cache_salt="../../x")),
}
HARMLESS = ("a call's nested arguments",)
"""Whether they are refused depends on the template."""


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_hostile_is_a_4xx(server_url: str, name: str) -> None:
    path, body = HOSTILE[name]
    answer = httpx.post(
        server_url + path,
        content=body,
        headers={"content-type": "application/json"},
        timeout=60,
    )
    assert answer.status_code < 500, answer.text[:500]
    if name in HARMLESS and answer.status_code == 200:
        return
    assert answer.status_code >= 400, answer.text[:500]
    assert answer.json()["error"]["message"] and len(answer.content) < 5000


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../../../../etc/passwd",
        "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/v1/models/..%5c..%5cwindows",
        "/v1/models/%00",
        "/../../../etc/passwd",
        "/schema/..%2f..%2fetc%2fpasswd",
        "/page/..%2f..%2f..%2fpyproject.toml",
        "/..%2f..%2f..%2f..%2fpyproject.toml",
        "//etc/passwd",
    ],
)
def test_a_path_names_nothing_outside(server_url: str, path: str) -> None:
    url = httpx.URL(server_url)
    with socket.create_connection((url.host, url.port or 80)) as sock:  # a client would clean it
        request = f"GET {path} HTTP/1.1\r\nHost: {url.host}\r\nConnection: close\r\n\r\n"
        sock.sendall(request.encode())
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] in (b"404", b"400"), answer[:300]
    assert b"root:" not in body and b"[project]" not in body


def test_a_body_of_a_hundred_megabytes_is_refused_unread(server_url: str) -> None:
    url = httpx.URL(server_url)
    with socket.create_connection((url.host, url.port or 80)) as sock:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: {100 * 2**20}\r\n\r\n".encode())
        assert sock.recv(65536).split()[1] == b"413"


@pytest.mark.slow
def test_five_hundred_clients_at_once_each_get_their_answer(server_url: str) -> None:
    async def one(http: httpx.AsyncClient, i: int) -> str:
        messages = [{"role": "user", "content": f"Say exactly: word{i}"}]
        body = {
            "messages": messages,
            "stream": bool(i % 2),
            "chat_template_kwargs": {"enable_thinking": False},
        }
        if not i % 2:
            answer = (await http.post(CHAT, json=body)).json()
            return str(answer["choices"][0]["message"]["content"])
        text = ""
        async with http.stream("POST", CHAT, json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
        return text

    async def all_of_them() -> list[str]:
        limits = httpx.Limits(max_connections=500)
        async with httpx.AsyncClient(base_url=server_url, limits=limits, timeout=120) as http:
            return await asyncio.gather(*[one(http, i) for i in range(500)])

    assert asyncio.run(all_of_them()) == [f"word{i}" for i in range(500)]


def test_after_all_that_the_server_is_well(server_url: str) -> None:
    assert httpx.get(f"{server_url}/health").json()["status"] == "ok"
    answer = httpx.post(server_url + CHAT, json={"messages": MESSAGES}, timeout=30).json()
    assert HELLO in answer["choices"][0]["message"]["content"]
    metrics = httpx.get(f"{server_url}/metrics").text
    assert 'http_requests_total{status="500"}' not in metrics
