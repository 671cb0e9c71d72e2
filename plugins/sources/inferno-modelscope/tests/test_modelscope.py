"""ModelScope against a local stand-in of its API: real HTTP, the real client, no network."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from attrs import define, field
from modelscope_hub import HubApi, HubConfig

import inferno_modelscope
from inferno.contracts import FetchOptions
from inferno.errors import InfernoError, ModelNotFoundError, OptionError
from inferno.testing import SourceTests
from inferno_modelscope import models

[SOURCE] = inferno_modelscope.inferno_sources()
REF = "modelscope:toys/bear"
MODEL = {
    "config.json": b'{"architectures": ["Toy"]}',
    "tokenizer.json": b"{}",
    "1_Pooling/config.json": b"{}",
    "model-00001-of-00002.safetensors": b"first" * 1000,
    "model-00002-of-00002.safetensors": b"second" * 1000,
    "pytorch_model.bin": b"the same again",
    "consolidated.safetensors": b"the same again",
    "onnx/config.json": b"{}",
}
USED = {
    "config.json",
    "tokenizer.json",
    "1_Pooling/config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
}


@define
class Hub:
    """What the stand-in holds, and what was asked of it."""

    url: str = ""
    repos: dict[str, dict[str, bytes]] = field(factory=dict)
    private: set[str] = field(factory=set)
    silent: str = ""
    """What the paths contain that are never answered: "/" for all."""
    status: int = 200
    """What downloads are answered with."""
    damaged: set[str] = field(factory=set)
    asked: list[str] = field(factory=list)
    ended: threading.Event = field(factory=threading.Event)

    def downloads(self) -> list[str]:
        queries = [parse_qs(urlsplit(path).query) for path in self.asked if "FilePath=" in path]
        return [query["FilePath"][0] for query in queries]


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.asked.append(self.path)
            parts = urlsplit(self.path)
            path, query = unquote(parts.path), parse_qs(parts.query)
            repo = "/".join(path.removeprefix("/api/v1/models/").split("/")[:2])
            if hub.silent and hub.silent in path:
                hub.ended.wait()
            elif repo in hub.private and self.headers.get("Authorization") != "Bearer sesame":
                self.answer(403, {"Code": 403, "Message": "access denied"})
            elif repo not in hub.repos or query.get("Revision", ["master"])[0] not in (
                "master",
                "v1",
            ):
                self.answer(404, {"Code": 10010205001, "Message": "not found", "Success": False})
            elif path.endswith("/repo/files"):
                files = [
                    {"Path": name, "Size": len(data), "Sha256": _sha256(data), "Type": "blob"}
                    for name, data in hub.repos[repo].items()
                ]
                self.answer(200, {"Code": 200, "Data": {"Files": files}, "Success": True})
            elif path.endswith("/repo"):
                name = query["FilePath"][0]
                data = hub.repos[repo][name]
                self.answer(hub.status, data[::-1] if name in hub.damaged else data)
            else:
                self.answer(200, {"Code": 200, "Data": {}, "Success": True})

        def answer(self, status: int, body: bytes | dict[str, Any]) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub(repos={"toys/bear": dict(MODEL)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    for name, value in {
        "ENDPOINT": hub.url,
        "CACHE": str(tmp_path / "cache"),
        "HOME": str(tmp_path / "home"),
    }.items():
        monkeypatch.setenv(f"MODELSCOPE_{name}", value)
    monkeypatch.delenv("MODELSCOPE_API_TOKEN", raising=False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the client's tries
    yield hub
    hub.ended.set()
    server.shutdown()
    server.server_close()


def fetch(ref: str = REF, **options: Any) -> Path:
    assert SOURCE.matches(ref)
    return SOURCE.fetch(ref, FetchOptions(**options))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class TestSource(SourceTests):
    source = "modelscope"
    missing = "modelscope:toys/absent"
    foreign = ("toys/bear", "./modelscope:toys/bear")

    @pytest.fixture
    def ref(self, hub: Hub) -> str:
        return REF


def test_a_model_comes_without_the_copies_in_other_formats(hub: Hub) -> None:
    folder = fetch()
    assert files(folder) == USED
    assert all((folder / name).read_bytes() == MODEL[name] for name in USED)
    assert list(SOURCE.list()) == [REF]


def test_what_is_here_is_neither_fetched_nor_read_again(hub: Hub) -> None:
    folder = fetch()
    hub.asked.clear()
    (folder / "tokenizer.json").write_bytes(b"[]")  # a reader would see another hash
    assert fetch() == folder
    assert hub.downloads() == []


def test_what_the_client_itself_downloaded_is_not_fetched_again(hub: Hub) -> None:
    HubApi(HubConfig()).download_repo("toys/bear", "model")
    hub.asked.clear()
    fetch()
    assert hub.downloads() == []


def test_changed_weights_of_the_same_size_are_fetched(hub: Hub) -> None:
    name = "model-00002-of-00002.safetensors"
    fetch()
    hub.asked.clear()
    hub.repos["toys/bear"][name] = b"SECOND" * 1000
    assert (fetch() / name).read_bytes() == b"SECOND" * 1000
    assert hub.downloads() == [name]


def test_one_file_and_a_split_one_are_fetched_alone(hub: Hub) -> None:
    parts = {f"q8/bear-0000{i}-of-00002.gguf": b"GGUF%d" % i for i in (1, 2)}
    hub.repos["toys/bear"] |= {"bear.gguf": b"GGUF", **parts}
    path = fetch(f"{REF}/bear.gguf")
    assert path.read_bytes() == b"GGUF"
    assert fetch(f"{REF}/q8/bear-00002-of-00002.gguf").read_bytes() == b"GGUF2"
    assert hub.downloads() == ["bear.gguf", *parts]
    with pytest.raises(ModelNotFoundError, match="missing or incomplete"):
        fetch(offline=True)  # its files are not the whole model


def test_a_file_comes_with_the_encoder_beside_it(hub: Hub) -> None:
    encoders = [f"mmproj-bear-{kind}.gguf" for kind in ("Q8_0", "f16")]
    hub.repos["toys/bear"] |= {name: name.encode() for name in ("bear.gguf", *encoders)}
    fetch(f"{REF}/bear.gguf", encoder=False)
    assert hub.downloads() == ["bear.gguf"]
    path = fetch(f"{REF}/bear.gguf")
    assert hub.downloads() == ["bear.gguf", "mmproj-bear-f16.gguf"]
    assert path.with_name("mmproj-bear-f16.gguf").exists()


def test_a_revision_is_a_snapshot_of_its_own(hub: Hub) -> None:
    assert fetch(f"{REF}@v1") == fetch(revision="v1") != fetch()
    assert list(SOURCE.list()) == [REF, f"{REF}@v1"]
    with pytest.raises(OptionError, match="different revisions"):
        fetch(f"{REF}@v1", revision="master")
    with pytest.raises(ModelNotFoundError, match="with the revision v2"):
        fetch(revision="v2")


@pytest.mark.parametrize("revision", ["../../other", "a//b", "", "a b", "-x"])
def test_what_cannot_be_a_revision_is_refused(hub: Hub, revision: str) -> None:
    with pytest.raises(ModelNotFoundError, match="is not a ModelScope id"):
        fetch(f"{REF}@{revision}")
    with pytest.raises(OptionError, match="is not a revision"):
        fetch(revision=revision)
    assert not hub.asked


@pytest.mark.parametrize("name", ["", "bear", "toys/../bear", "toys/bear/../x", "/toys/bear"])
def test_what_cannot_be_a_model_is_refused(hub: Hub, name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="is not a ModelScope id"):
        fetch(f"modelscope:{name}")
    assert not hub.asked


@pytest.mark.parametrize("path", ["1/../../out.json", "/etc/x.json", "..", "a\n.json"])
def test_a_path_that_leads_out_of_the_model_is_refused_before_anything_is_written(
    hub: Hub, path: str, tmp_path: Path
) -> None:
    hub.repos["toys/bear"][path] = b"{}"
    try:
        folder = fetch()
    except InfernoError as error:
        assert "leads out of the model" in str(error)
        assert not [p for p in tmp_path.rglob("*") if p.is_file() and "home" not in p.parts]
    else:
        assert files(folder) == USED


def test_a_download_that_is_cut_short_goes_on_and_is_no_model_until_then(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "modelscope_hub._download_control._DownloadControl.sleep", lambda control, seconds: None
    )
    hub.damaged = {"model-00002-of-00002.safetensors"}
    with pytest.raises(InfernoError, match="failed") as caught:
        fetch()
    assert "Run it again" in caught.value.remedy
    assert not SOURCE.list()
    with pytest.raises(ModelNotFoundError, match="missing or incomplete"):
        fetch(offline=True)
    hub.damaged.clear()
    hub.asked.clear()
    assert files(fetch()) == USED
    assert hub.downloads() == ["model-00002-of-00002.safetensors"]


def test_a_file_that_the_hub_does_not_give_is_not_a_missing_model(hub: Hub) -> None:
    hub.status = 400
    with pytest.raises(InfernoError) as caught:
        fetch()
    assert not isinstance(caught.value, ModelNotFoundError) and "failed" in caught.value.cause


def test_a_private_model_needs_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.private = {"toys/bear"}
    with pytest.raises(ModelNotFoundError) as caught:
        fetch()
    assert "MODELSCOPE_API_TOKEN" in caught.value.remedy
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "sesame")
    assert files(fetch()) == USED


def test_without_safetensors_its_other_files_are_named(hub: Hub) -> None:
    hub.repos["toys/owl"] = {"config.json": b"{}", "owl.gguf": b"GGUF"}
    with pytest.raises(ModelNotFoundError, match="no safetensors") as caught:
        fetch("modelscope:toys/owl")
    assert caught.value.remedy == "Name one of its files: modelscope:toys/owl/owl.gguf."
    with pytest.raises(ModelNotFoundError, match="no file cat.gguf"):
        fetch("modelscope:toys/owl/cat.gguf")


def test_a_silent_hub_hangs_no_start(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "PATIENCE", 0.1)
    monkeypatch.setattr(models, "PATIENCE_IF_HERE", 0.1)
    hub.silent = "/"
    with pytest.raises(ModelNotFoundError, match="was not reached"):
        fetch()
    hub.silent = ""
    folder = fetch()
    hub.silent = "/"
    assert fetch() == folder


def test_a_damaged_record_is_as_none(hub: Hub, tmp_path: Path) -> None:
    folder = fetch()
    [record] = tmp_path.rglob("inferno/*.json")
    for text in ("", "[]", '{"files": [[1]], "finished": []}', '{"files": 3}', "\xff"):
        record.write_text(text, encoding="latin-1")
        assert not SOURCE.list()
        hub.asked.clear()
        assert fetch() == folder and hub.downloads() == []
