"""A local stand-in of the hub's API: real HTTP for the real client, no network."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from attrs import define, field

SHA = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_sesame"


@define
class Hub:
    """What the stand-in holds, and what was asked of it."""

    url: str = ""
    repos: dict[str, dict[str, bytes]] = field(factory=dict)
    gated: set[str] = field(factory=set)
    broken: bool = False
    silent: str = ""
    """What the paths contain that are never answered: "/" for all."""
    ended: threading.Event = field(factory=threading.Event)
    asked: list[tuple[str, str]] = field(factory=list)

    def downloads(self) -> list[str]:
        resolved = [
            path.split("/resolve/")[1]
            for verb, path in self.asked
            if verb == "GET" and "/resolve/" in path
        ]
        return [name.split("/", 1)[1] for name in resolved]


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path))
            if hub.silent and hub.silent in path:
                hub.ended.wait()
            elif hub.broken:
                self.answer(502)
            elif path.startswith("/api/models/"):
                self.api(path.removeprefix("/api/models/").split("/"))
            else:
                repo, _, rest = path[1:].partition("/resolve/")
                self.file(repo, *rest.split("/", 1))

        do_HEAD = do_GET

        def api(self, parts: list[str]) -> None:
            repo, kind = "/".join(parts[:2]), parts[2] if len(parts) > 2 else "revision"
            if repo not in hub.repos:
                self.answer(401, error="RepoNotFound")
            elif len(parts) > 3 and parts[3] not in ("main", SHA):
                self.answer(404, error="RevisionNotFound")
            elif kind == "tree":
                listing = [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(data),
                        "oid": hashlib.sha1(data).hexdigest(),
                    }
                    for name, data in hub.repos[repo].items()
                ]
                self.answer(200, json.dumps(listing).encode())
            else:
                siblings = [{"rfilename": name} for name in hub.repos[repo]]
                self.answer(
                    200, json.dumps({"id": repo, "sha": SHA, "siblings": siblings}).encode()
                )

        def file(self, repo: str, revision: str, name: str) -> None:
            allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            if repo not in hub.repos:
                self.answer(401, error="RepoNotFound")
            elif repo in hub.gated and not allowed:
                self.answer(403 if "Authorization" in self.headers else 401, error="GatedRepo")
            elif name not in hub.repos[repo]:
                self.answer(404, error="EntryNotFound")
            else:
                data = hub.repos[repo][name]
                self.answer(200, data, ETag=f'"{hashlib.sha1(data).hexdigest()}"')

        def answer(self, status: int, body: bytes = b"", error: str = "", **headers: str) -> None:
            self.send_response(status)
            for key, value in {
                "X-Repo-Commit": SHA,
                "Content-Length": str(len(body)),
                **headers,
            }.items():
                self.send_header(key, value)
            if error:
                self.send_header("X-Error-Code", error)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve an empty hub, which the client asks from now on."""
    from huggingface_hub import constants

    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    # The client reads its variables when it is imported: what HF_ENDPOINT, HF_HOME and HF_TOKEN
    # would have set.
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        hub.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for name, value in {
        "ENDPOINT": hub.url,
        "HUB_CACHE": str(tmp_path / "hub"),
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(f"HF_{name}", value)  # for other processes
    yield hub
    hub.ended.set()
    server.shutdown()
    server.server_close()
