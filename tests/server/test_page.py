"""The chat page as files over HTTP; `test_page_browser.py` uses it."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import typing
from pathlib import Path
from typing import Any

import pytest

import inferno.server.page
from inferno.server.hosting.describe import Capability

FOLDER = Path(inferno.server.page.__file__).parent
FILES = sorted(
    path.name for path in FOLDER.iterdir() if path.suffix in (".css", ".html", ".js", ".svg")
)
LIBRARY = "markdown-it.js"
LIBRARY_SHA256 = "d5432491790141da046b1197353705db03264f40b5727f3b4b591f5aba193e30"
"""Of `dist/browser/markdown-it.esm.min.mjs` in the npm package markdown-it 15.0.3."""
SCRIPTS = [name for name in FILES if name.endswith(".js")]
MAX_PACKED = 40_000
"""Bytes of what we write of the page, as a browser loads it."""
MAX_PACKED_LIBRARY = 48_000


def test_every_file_is_served_with_its_type_and_a_policy(client: Any) -> None:
    http = client()
    kinds = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    for name in FILES:
        suffix = Path(name).suffix
        answer = http.get("/" if suffix == ".html" else f"/page/{name}")
        assert answer.status_code == 200
        assert answer.content == (FOLDER / name).read_bytes()
        assert answer.headers["content-type"].startswith(kinds.get(suffix, "text/html"))
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_known_file_is_not_sent_again(client: Any) -> None:
    http = client()
    first = http.get("/")
    again = http.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert http.get("/", headers={"If-None-Match": '"old"'}).status_code == 200


def test_files_are_compressed_for_browsers_that_accept_it(client: Any) -> None:
    http = client()
    assert http.get("/", headers={"Accept-Encoding": "gzip"}).headers["content-encoding"] == "gzip"
    plain = http.get("/", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == "Accept-Encoding"


def test_the_page_needs_no_key_and_the_api_does(client: Any) -> None:
    http = client(api_keys=["k"])
    assert http.get("/").status_code == 200
    assert http.get("/page/app.js").status_code == 200
    assert http.get("/v1/models").status_code == 401


@pytest.mark.parametrize("name", ["__init__.py", "..%2Fapp.py", "%2e%2e", "index.htm", "x" * 300])
def test_nothing_else_in_the_folder_or_above_it_is_served(client: Any, name: str) -> None:
    answer = client().get(f"/page/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


def test_the_page_can_be_left_out(client: Any) -> None:
    http = client(page=False)
    assert [http.get(path).status_code for path in ("/", "/page/app.js")] == [404, 404]


def test_the_page_is_no_part_of_the_api(client: Any) -> None:
    paths = client().get("/schema/openapi.json").json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/page")]


def test_the_page_is_small() -> None:
    packed = {name: len(gzip.compress((FOLDER / name).read_bytes())) for name in FILES}
    assert packed.pop(LIBRARY) < MAX_PACKED_LIBRARY
    assert sum(packed.values()) < MAX_PACKED


def test_the_library_is_as_published_and_its_licences_are_beside_it() -> None:
    library = (FOLDER / LIBRARY).read_bytes()
    assert hashlib.sha256(library).hexdigest() == LIBRARY_SHA256
    licences = (FOLDER / "markdown-it.LICENSE").read_text()
    [name, version] = re.findall(r"markdown-it|\d+\.\d+\.\d+", library[:60].decode())[:2]
    assert f"{name} {version}" in licences


def test_the_page_loads_what_exists_and_only_from_its_server() -> None:
    for name in FILES:
        text = (FOLDER / name).read_text()
        for wanted in re.findall(r'(?:src|href)="page/([^"]+)"|from "\./([^"]+)"', text):
            assert "".join(wanted) in FILES, name
        urls = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}
        # The library's banner says where it comes from.
        assert urls == ({"https://github.com"} if name == LIBRARY else set()), name


def test_text_never_becomes_markup() -> None:
    for name in SCRIPTS:
        sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
        code = re.sub(r"^ *//.*$", "", (FOLDER / name).read_text(), flags=re.MULTILINE)
        assert not re.search(sinks, code), name
    html = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?! (?:type=\"module\" )?src=)", html)


def test_pictures_are_the_users_own_and_offered_to_models_that_see(client: Any) -> None:
    policy = client().get("/").headers["content-security-policy"]
    assert "img-src 'self' data:;" in policy, "nothing of another server"
    html = (FOLDER / "index.html").read_text()
    assert re.search(r'<button id="attach"[^>]* hidden>', html), "until the model is known"
    [word] = re.findall(r'capabilities\?\.includes\("(\w+)"\)', (FOLDER / "app.js").read_text())
    assert word in typing.get_args(Capability)


@pytest.mark.parametrize(
    "script", [pytest.param("page_markdown.mjs", marks=pytest.mark.slow), "page_pictures.mjs"]
)
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_modules_of_the_page(script: str, tmp_path: Path) -> None:
    for name in SCRIPTS:
        shutil.copy(FOLDER / name, tmp_path)
    # Node asks a package.json whether a .js file is a module; the page's folder has none.
    (tmp_path / "package.json").write_text('{"type": "module"}')
    ran = subprocess.run(
        ["node", "--test", str(Path(__file__).with_name(script))],
        capture_output=True,
        text=True,
        env={**os.environ, "PAGE": tmp_path.as_uri()},
    )
    assert ran.returncode == 0, ran.stdout
