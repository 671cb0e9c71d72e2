"""Endpoints of plugins: served beside the server's own, and what is missing says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.test_thirdparty import Site, site

from inferno.catalog import load_catalog
from inferno.errors import PluginError
from inferno.hookspecs import ENDPOINTS

__all__ = ["site"]


@pytest.fixture
def distributions() -> Sequence[str]:
    return ()


MODULE = """
from litestar import get, post
from inferno import hookimpl
from inferno.contracts import Endpoints
from inferno.server.api import Api, ModelCards

@hookimpl
def inferno_endpoints():
    return [Endpoints(name={name!r}, paths={paths!r}, api="broken_{name}:{api}")]

@get({paths!r}[0] + "/hello", sync_to_thread=False)
def hello() -> str:
    return "hello"

@get("/elsewhere/hello", sync_to_thread=False)
def elsewhere() -> str:
    return "hello"

def failed(status, body, request_id):
    return {{"failed": body["error"]["message"], "id": request_id}}

cards = ModelCards(header="x-mine", card=lambda card: {{"mine": card["id"]}}, page=len)
API = Api(handlers=(hello,), error=failed, request_id_header="mine-id", model_cards=cards)
ESCAPES = Api(handlers=(elsewhere,))
NONE = 7
"""


def install(site: Site, name: str, *paths: str, api: str = "API") -> None:
    source = MODULE.format(name=name, paths=paths or (f"/{name}",), api=api)
    site.install(name, source, group=ENDPOINTS)


def test_an_endpoint_of_a_plugin_is_served_behind_the_servers_keys(site: Site, client: Any) -> None:
    install(site, "mine")
    http = client(api_keys=["k"])
    assert http.get("/mine/hello", headers={"X-Api-Key": "k"}).text == "hello"
    answer = http.get("/mine/hello")
    assert answer.status_code == 401 and set(answer.json()) == {"failed", "id"}
    assert answer.json()["id"] == answer.headers["mine-id"] == answer.headers["x-request-id"]
    assert "/mine/hello" in http.get("/schema/openapi.json", headers={"X-Api-Key": "k"}).text


def test_errors_under_its_paths_have_its_format_and_others_openais(site: Site, client: Any) -> None:
    install(site, "mine")
    http = client(allowed_hosts=["testserver.local"])
    for path in ("/mine", "/mine/nothing"):
        assert set(http.get(path).json()) == {"failed", "id"}
        assert "failed" in http.get(path, headers={"Host": "evil.example"}).json()
    for path in ("/mines", "/nothing"):
        assert set(http.get(path).json()) == {"error"}


def test_web_pages_may_read_its_header(site: Site, client: Any) -> None:
    install(site, "mine")
    page = "https://chat.example"
    answer = client(cors_origins=[page]).get("/health", headers={"Origin": page})
    assert "mine-id" in answer.headers["Access-Control-Expose-Headers"].split(", ")


def test_its_clients_see_models_in_its_format(site: Site, client: Any) -> None:
    install(site, "mine")
    http = client()
    assert http.get("/v1/models/fake", headers={"X-Mine": ""}).json() == {"mine": "fake"}
    assert http.get("/v1/models", headers={"X-Mine": ""}).json() == 1
    assert http.get("/v1/models/fake").json()["id"] == "fake"


@pytest.mark.parametrize(
    ("api", "reason"),
    [
        ("ABSENT", "which cannot be imported"),
        ("NONE", "must be a server.api.Api"),
        ("ESCAPES", "the endpoint /elsewhere/hello is none of its paths"),
    ],
)
def test_a_plugin_that_does_not_load_is_left_out_and_its_paths_say_so(
    site: Site, client: Any, caplog: pytest.LogCaptureFixture, api: str, reason: str
) -> None:
    install(site, "mine", api=api)
    http = client()
    assert reason in caplog.text and "inferno-mine" in caplog.text
    answer = http.get("/mine/hello")
    assert answer.status_code == 404
    message = answer.json()["error"]["message"]
    assert reason in message and "inferno-mine" in message
    assert http.get("/v1/models").status_code == 200


def test_a_plugin_that_does_not_import_is_left_out(
    site: Site, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("mine", "import a_library_that_is_not_here", group=ENDPOINTS)
    assert client().get("/v1/models").status_code == 200
    assert "inferno-mine" in caplog.text and "a_library_that_is_not_here" in caplog.text
    assert [p.name for p in load_catalog(groups=[ENDPOINTS]).broken] == ["mine"]


@pytest.mark.parametrize("other", ["/mine", "/mine/", "/mine/hello"])
def test_paths_that_two_distributions_claim_are_refused_with_both_named(
    site: Site, client: Any, other: str
) -> None:
    install(site, "mine")
    install(site, "other", other)
    with pytest.raises(PluginError, match="inferno-mine and inferno-other") as caught:
        client()
    assert "--disable inferno-other" in caught.value.remedy
    assert client(disable=["other"]).get("/mine/hello").text == "hello"
    install(site, "third", "/mines")
    assert client(disable=["other"]).get("/mines/hello").text == "hello"


@pytest.mark.parametrize("path", ["/v1", "/v1/models", "/v1/chat"])
def test_the_servers_own_paths_cannot_be_claimed(site: Site, client: Any, path: str) -> None:
    install(site, "mine", path)
    with pytest.raises(PluginError, match="both inferno and inferno-mine have endpoints at"):
        client()


def test_the_404_of_a_missing_distributions_path_names_it(site: Site, client: Any) -> None:
    hint = (
        "from inferno import hookimpl\nfrom inferno.contracts import Hint\n@hookimpl\n"
        "def inferno_hints():\n"
        "    return [Hint(kind='endpoint', name='/v1/far', distribution='inferno-far')]\n"
    )
    site.install("hints", hint)
    http = client()
    for path in ("/v1/far", "/far", "/v1/far/away"):
        message = http.post(path, json={}).json()["error"]["message"]
        assert f"There is no {path} here. Try `pip install inferno-far`." in message
    assert "inferno-far" not in http.get("/v1/farther").json()["error"]["message"]


def test_a_switched_off_distribution_is_named_as_that(site: Site, client: Any) -> None:
    install(site, "mine")
    hint = (
        "from inferno import hookimpl\nfrom inferno.contracts import Hint\n@hookimpl\n"
        "def inferno_hints():\n"
        "    return [Hint(kind='endpoint', name='/mine', distribution='inferno-mine')]\n"
    )
    site.install("hints", hint)
    message = client(disable=["mine"]).get("/mine/hello").json()["error"]["message"]
    assert "inferno-mine has it and is switched off" in message
