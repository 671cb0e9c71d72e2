"""A server's model in `inferno chat`: any server with OpenAI's chat endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from inferno.cli.chat_model import Dropped, Message, New, Piece, Usage
from inferno.cli.endings import Ending
from inferno.cli.running_server import unix_path, untrusted
from inferno.errors import OptionError, RemoteError
from inferno.request.sampling_params import parameters

CONNECT_SECONDS = 10.0
"""Seconds a server may take to accept a connection. Before the first token it may be silent for as
long as a prompt takes."""
_IN_BODY = {parameter.name for parameter in parameters() if parameter.in_body}


class RemoteModel:
    """One model of a server. Close it after use."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        name: str | None = None,
        *,
        drops_oldest: bool = False,
    ) -> None:
        """`url` with a path is used as it is, else `/v1` is added; `unix:PATH` is a Unix socket.
        Without `name`, the server's first model answers. `drops_oldest`: the server, which must be
        inferno's, drops the oldest turns of a conversation that does not fit. Raises OptionError or
        RemoteError."""
        socket = unix_path(url)
        self.url = _base(url if socket is None else "http://localhost")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(CONNECT_SECONDS, read=None),
            follow_redirects=True,
            transport=None if socket is None else httpx.HTTPTransport(uds=socket),
        )
        self._name = name or self._first()
        self._drops_oldest = drops_oldest
        self._sampling: dict[str, Mapping[str, Any]] = {}
        """By model, what the server suggests for a person at a terminal."""

    @property
    def name(self) -> str:
        return self._name

    def close(self) -> None:
        self._client.close()

    def names(self) -> Sequence[str]:
        return [str(card["id"]) for card in self._cards()]

    def _cards(self) -> Sequence[Mapping[str, Any]]:
        with self._request("GET", "models") as response:
            return _object(response.read()).get("data") or ()

    def _suggested(self) -> Mapping[str, Any]:
        """Sampling parameters to send where the user sets none: inferno's API has OpenAI's defaults
        where a checkpoint names none. Other servers suggest nothing."""
        if self.name not in self._sampling:
            card: Mapping[str, Any] = {}
            with suppress(RemoteError):  # a server need not list its models
                card = next((card for card in self._cards() if card["id"] == self.name), {})
            sampling = card.get("interactive_sampling")
            if sampling is None and card.get("owned_by") == "inferno":
                return {}  # not loaded yet
            self._sampling[self.name] = sampling or {}
        return self._sampling[self.name]

    def choose(self, name: str) -> None:
        known = self.names()
        if name not in known:
            raise RemoteError(f"the server has no model {name[:80]!r}", _use_one_of(known))
        self._name = name

    def answer(
        self, messages: Sequence[Message], settings: Mapping[str, Any], thinking: bool | None
    ) -> Iterator[New]:
        if unknown := settings.keys() - _IN_BODY:
            raise OptionError(f"a server does not take {', '.join(unknown)}", "Leave it out.")
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._suggested(),
            **settings,
        }
        if self._drops_oldest:
            body["truncation"] = "auto"
        if thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": thinking}
        tokens, is_cut = 0, False
        with self._request("POST", "chat/completions", body) as response:
            for line in response.iter_lines():
                if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                    event = _object(data)
                    is_cut = is_cut or _is_cut(event)
                    if notes := event.get("x_inferno"):
                        names = notes.get("ignored") or ()
                        yield Dropped(sum(name.startswith("messages[") for name in names))
                    for new in _event(event):
                        tokens = new.completion_tokens if isinstance(new, Usage) else tokens
                        yield new
        if is_cut:
            limit = settings.get("max_tokens")
            yield Ending("context") if limit is None or tokens < limit else Ending("limit", limit)

    @contextmanager
    def _request(self, method: str, path: str, body: Any = None) -> Iterator[httpx.Response]:
        try:
            with self._client.stream(method, f"{self.url}/{path}", json=body) as response:
                if response.is_error:
                    raise _refusal(response.status_code, response.read())
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise RemoteError(
                f"{self.url} cannot be reached: {error}",
                untrusted(error) or "Check the address, and that it runs.",
            ) from error
        except httpx.HTTPError as error:
            raise RemoteError(
                f"{self.url} broke off: {error or type(error).__name__}",
                "/retry sends the message again.",
            ) from error

    def _first(self) -> str:
        names = self.names()
        if not names:
            raise RemoteError(
                f"{self.url} lists no models", "Name one: inferno chat MODEL --url URL"
            )
        return names[0]


def _base(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError(
            f"{url!r} is not a server's address", "Give one such as http://127.0.0.1:8000"
        )
    path = parts.path.rstrip("/") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


def _is_cut(event: Mapping[str, Any]) -> bool:
    return any(choice.get("finish_reason") == "length" for choice in event.get("choices") or ())


def _event(event: Mapping[str, Any]) -> Iterator[Piece | Usage]:
    if error := event.get("error"):
        message = error.get("message") if isinstance(error, Mapping) else error
        raise RemoteError(f"the answer broke off: {message}", "/retry sends the message again.")
    if usage := event.get("usage"):
        details = usage.get("prompt_tokens_details") or {}
        yield Usage(
            usage.get("prompt_tokens") or 0,
            details.get("cached_tokens") or 0,
            usage.get("completion_tokens") or 0,
        )
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if reasoning := delta.get("reasoning") or delta.get("reasoning_content"):
            yield Piece("reasoning", reasoning)
        if content := delta.get("content"):
            yield Piece("content", content)


def _object(data: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
        if isinstance(value, dict):
            return value
    except ValueError:
        pass
    raise RemoteError(
        f"the server answered with {data[:60]!r}, which is not OpenAI's API",
        "Check the address: it usually ends in /v1.",
    )


def _refusal(status: int, content: bytes) -> RemoteError:
    try:
        error = json.loads(content)["error"]
        message = error["message"] if isinstance(error, dict) else str(error)
        code = error.get("code") if isinstance(error, dict) else None
    except (ValueError, KeyError, TypeError):
        code = None
        message = content[:200].decode(errors="replace").strip() or "no reason was given"
    remedies = {
        401: "Give the server's key: --api-key KEY, or OPENAI_API_KEY.",
        404: "Check the address, which usually ends in /v1, and the model: /model lists them.",
        429: "The server is busy: /retry in a moment.",
        503: "The server is not ready: /retry in a moment.",
    }
    refusal = RemoteError(f"the server answered {status}: {message}", remedies.get(status, ""))
    if isinstance(code, str):
        refusal.code = code
    return refusal


def _use_one_of(names: Sequence[str]) -> str:
    return f"Use one of: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
