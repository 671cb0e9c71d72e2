"""Tests of every API that a plugin adds to the server: where it is, what its errors look like, and
that its tables say what happens."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from attrs import fields_dict

from inferno.catalog import load_catalog
from inferno.contracts import Endpoints
from inferno.contracts.endpoints import is_under
from inferno.errors import RequestError
from inferno.hookspecs import ENDPOINTS

if TYPE_CHECKING:
    from litestar.testing import TestClient

    from inferno.server.api import Api

_HEAVY = ("torch", "transformers", "litestar")
_KEY, _LARGEST = "sesame", 4096
_PARAMETER = re.compile(r"\{[^}]*\}")


class EndpointsTests:
    """Set `endpoints` to their name, and `smallest` to a body that is read, for each request body,
    by its class's `path`."""

    endpoints: ClassVar[str]
    smallest: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls) -> Endpoints:
        return load_catalog(groups=[ENDPOINTS]).named(Endpoints, cls.endpoints).item

    @pytest.fixture(scope="class")
    @classmethod
    def api(cls, item: Endpoints) -> Api:
        from inferno.contracts.lazy import resolved

        value: Any = resolved(item.api)
        return value  # type: ignore[no-any-return]

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
        """A server that wants a key, which is an admin's, with a model that is never loaded."""
        from litestar.testing import TestClient

        from inferno.server import ServerOptions, create_app
        from inferno.server.access.keys import Keys
        from inferno.server.hosting.hosted_model import ModelSpec

        def make() -> Any:
            raise AssertionError("no request of these tests needs a model")

        spec = ModelSpec(names=("unloaded",), make=make, ref="unloaded")
        keys = tmp_path_factory.mktemp("keys") / "keys.toml"
        keys.write_text(f'[keys.operator]\nkey = "{_KEY}"\nadmin = true')
        options = ServerOptions(api_keys=Keys(file=keys), max_body_bytes=_LARGEST, page=False)
        app = create_app([spec], options)
        with TestClient(app, raise_server_exceptions=False) as client:
            yield client

    def test_the_declaration_imports_nothing_heavy(self, item: Endpoints) -> None:
        module = str(item.api).partition(":")[0]
        code = (
            "import sys; from inferno.catalog import load_catalog\n"
            f"load_catalog(groups=[{ENDPOINTS!r}])\n"
            f"print({{*{(module, *_HEAVY)!r}}} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "set()", done.stdout + done.stderr

    def test_the_server_has_every_endpoint(self, api: Api, server: TestClient[Any]) -> None:
        assert api.handlers
        for method, path in _requests(api):
            answer = server.request(method, path, headers={"X-Api-Key": _KEY}, json={})
            # A model may be missing; its error names a model, not a path.
            assert answer.status_code != 405 and "There is no /" not in answer.text, path

    def test_the_openapi_document_describes_it(self, api: Api, server: TestClient[Any]) -> None:
        document = server.get("/schema/openapi.json", headers={"X-Api-Key": _KEY}).json()
        known = document["components"]["schemas"]
        for handler in api.handlers:
            for path in handler.paths if handler.include_in_schema is not False else ():
                written = re.sub(r":\w+\}", "}", path)
                assert written in document["paths"], path
        for body in api.bodies:
            if "#" not in body.path:  # a part of another body
                described = known[body.__name__]["properties"]
                assert set(described) >= set(fields_dict(body)), body

    def test_errors_have_its_format(
        self, item: Endpoints, api: Api, server: TestClient[Any]
    ) -> None:
        openai = {"message": "m", "type": "t", "param": None, "code": None}
        form = api.error(401, {"error": openai}, "id") if api.error else {"error": openai}
        key = {"X-Api-Key": _KEY}
        absent = [f"{start.rstrip('/')}/no-such-path" for start in item.paths]
        answers = [(401, server.request(m, path, json={})) for m, path in _requests(api)]
        answers += [(404, server.get(path, headers=key)) for path in absent]
        answers += [
            (413, server.post(body.path, json={"x": "x" * 2 * _LARGEST}, headers=key))
            for body in api.bodies
            if "#" not in body.path and "{" not in body.path
        ]
        for status, answer in answers:
            assert answer.status_code == status, f"{answer.url}: {answer.text}"
            assert _kinds(answer.json()) == _kinds(form), answer.url
            if api.request_id_header:
                assert answer.headers[api.request_id_header] == answer.headers["x-request-id"]

    def test_what_is_no_json_is_refused(self, api: Api, server: TestClient[Any]) -> None:
        for body in api.bodies:
            if "#" in body.path or "{" in body.path:
                continue
            for sent in (b"{", b"[]", b'"x"', b"\xff"):
                kind = {"X-Api-Key": _KEY, "Content-Type": "application/json"}
                answer = server.post(body.path, content=sent, headers=kind)
                assert answer.status_code == 400, f"{body.path} {sent!r}: {answer.text}"

    def test_its_paths_are_its_own(self, item: Endpoints, api: Api) -> None:
        for path in (*(p for h in api.handlers for p in h.paths), *(b.path for b in api.bodies)):
            assert any(is_under(path.partition("#")[0], start) for start in item.paths), path

    def test_a_table_names_every_field_that_is_read_and_no_other_as_honoured(
        self, api: Api
    ) -> None:
        for body in api.bodies:
            honoured = [row.name for row in body.rows if row.verdict == "honoured"]
            assert sorted(honoured) == sorted(fields_dict(body)), body
            assert len({row.name for row in body.rows}) == len(body.rows), body
            assert all(row.note for row in body.rows), body

    def test_what_a_table_says_of_a_field_is_what_happens(self, api: Api) -> None:
        for body in api.bodies:
            assert self._send(body, {}) == [], "`smallest` is read, and has an effect"
            for row in body.rows:
                if row.verdict == "refused":
                    with pytest.raises(RequestError) as caught:
                        self._send(body, {row.name: "something"})
                    assert (caught.value.param, caught.value.remedy) == (row.name, row.note)
                elif row.verdict == "accepted":
                    assert self._send(body, {row.name: "something"}) == [row.name]
                if row.verdict != "honoured":
                    for value in (*row.harmless, None):
                        assert self._send(body, {row.name: value}, strict=True) == []

    def _send(
        self, body: type[Any], fields: Mapping[str, Any], *, strict: bool = False
    ) -> list[str]:
        """Return the fields without effect of the smallest body with those."""
        from inferno.server.http.parsing import decode

        sent = {**self.smallest[body.path], **fields}
        return list(decode(json.dumps(sent).encode(), body, strict=strict).ignored)


def _requests(api: Api) -> list[tuple[str, str]]:
    """Each method and path, with something for a path's parameters."""
    return [
        (method, _PARAMETER.sub("x", path))
        for handler in api.handlers
        for path in handler.paths
        for method in sorted(map(str, handler.http_methods))
        if method not in ("HEAD", "OPTIONS")
    ]


def _kinds(value: Any) -> Any:
    """The shape of JSON: objects' names, and whether a value is text."""
    if isinstance(value, dict):
        return {name: _kinds(each) for name, each in value.items() if name != "param"}
    return "text" if isinstance(value, str | None) else type(value)
