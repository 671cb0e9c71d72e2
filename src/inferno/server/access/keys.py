"""API keys: who may use the server, and what each key may do.

A key's file is TOML, with a table for each key:

    [keys.alice]
    sha256 = "9f86d0..."      # or: key = "sk-..."
    requests_per_minute = 60
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

import attrs
from attrs import frozen
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from inferno.configs.files import contents
from inferno.errors import (
    AuthenticationError,
    CheckpointError,
    OptionError,
    PermissionDeniedError,
)
from inferno.server.access.guesses import Guesses
from inferno.server.access.limits import Account, Bucket, Key
from inferno.server.observe.record import record_of
from inferno.server.storage.quotas import Quota

log = logging.getLogger("inferno.server")

Connection = ASGIConnection[Any, Any, Any, Any]

_MOST_BYTES = 4 * 2**20
"""Of a file of keys."""
_LOOPBACK = ("127.0.0.1", "::1")
_FORWARDED = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"),
)
"""Headers that proxies add."""
INSIDE_KEY = "inferno_key"
"""In the state of a connection from this process: the key whose request it is."""
PEER_UID = "inferno_peer_uid"
"""In a connection's state: the user at the other end of a Unix socket."""


class Keys:
    """The keys of one server. (Not an attrs class: Litestar would inspect it.)"""

    def __init__(self, keys: Sequence[str] = (), file: Path | None = None) -> None:
        """`keys` have no limits. Raises OptionError for a key that no client can send, and for an
        invalid file."""
        self._plain = tuple(
            _parse(f"key-{i}", {"key": key}) for i, key in enumerate(dict.fromkeys(keys), 1)
        )
        self._file = file
        self._keys: tuple[Key, ...] = self._plain
        self.guesses = Guesses()
        self._known = set[bytes]()
        """Digests of keys that were sent since the start: they pass, whoever else guesses."""
        if file is not None:
            self._keys += read_keys(file)
            self._check_distinct(self._keys)

    @property
    def needed(self) -> bool:
        """Whether clients must send a key."""
        return bool(self._keys) or self._file is not None

    @property
    def all(self) -> tuple[Key, ...]:
        return self._keys

    def find(self, connection: Connection) -> Key:
        """Return the key of a connection, from `Authorization: Bearer KEY` or `X-Api-Key: KEY`.
        Raises AuthenticationError, and LimitError where too many wrong ones came before."""
        scheme, _, sent = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            sent = connection.headers.get("x-api-key", "")
        given = hashlib.sha256(sent.strip().encode()).digest() if sent.strip() else b""
        # Compares every key in constant time, so that timing reveals nothing.
        keys = [key for key in self._keys if hmac.compare_digest(given, key.digest)]
        address = (connection.scope.get("client") or ("",))[0] or ""
        if given and given not in self._known:
            self.guesses.check(address)
        if not keys:
            if given:
                self.guesses.failed(address)
            raise AuthenticationError(
                "the API key is missing or wrong",
                "Send it as a header: Authorization: Bearer KEY, or X-Api-Key: KEY",
            )
        self._known.add(given)
        return keys[0]

    def quota_of(self, owner: str) -> Quota:
        """Return what an owner may store."""
        key = self.of_owner(owner)
        return Quota() if key is None else key.quota

    def of_owner(self, owner: str) -> Key | None:
        """Return the key of an owner (`Record.owner`), if there still is one."""
        return next((key for key in self._keys if key.digest.hex() == owner), None)

    def reload(self) -> None:
        """Read the file again. Keys keep their usage and what is left of their limits; an invalid
        file changes nothing, and is logged."""
        if self._file is None:
            return
        try:
            new = (*self._plain, *read_keys(self._file))
            self._check_distinct(new)
        except OptionError as error:
            log.error("the keys stay as they are: %s", error)
            return
        before = {(key.name, key.digest): key for key in self._keys}
        self._keys = tuple(_continued(key, before.get((key.name, key.digest))) for key in new)
        log.warning("%s was read again: %d keys", self._file, len(new))

    def guard(self, open_paths: Sequence[str]) -> Guard:
        """Return a guard that demands a key on all but `open_paths` and handlers with the option
        `needs_no_key`, counts the request, and puts the key into the request's record."""
        opened = frozenset(open_paths)

        async def guard(connection: Connection, handler: BaseRouteHandler) -> None:
            # A handler's own paths are relative to its router's.
            path = connection.scope.get("path_template")
            if path in opened or handler.opt.get("needs_no_key") or not self.needed:
                return
            inside = connection.scope.get("state", {}).get(INSIDE_KEY)
            key, record = inside or self.find(connection), record_of(connection.scope)
            if record is None:  # mounted in an app without records
                return
            record.key = key
            record.headers = key.account.headers
            if record.method == "POST":
                key.account.enter()
                record.at_end.append(key.account.leave)

        return guard

    @staticmethod
    def _check_distinct(keys: Sequence[Key]) -> None:
        seen: dict[bytes, str] = {}
        for key in keys:
            if (other := seen.setdefault(key.digest, key.name)) != key.name:
                raise OptionError(
                    f"{other!r} and {key.name!r} are the same API key", "Remove one of them."
                )


async def admin_only(connection: Connection, _: BaseRouteHandler) -> None:
    """Guard that lets only an admin pass: a key with `admin = true`, or, if there is none, a
    program on this machine that is no proxy and no web page of another origin; on a Unix socket,
    only the server's own user and root. Raises PermissionDeniedError."""
    keys: Keys = connection.app.state.api_keys
    if any(key.admin for key in keys.all):
        record = record_of(connection.scope)
        if record is not None and record.key is not None and record.key.admin:
            return
        raise PermissionDeniedError(
            "this needs an admin key", "Use a key that has `admin = true` in the keys' file."
        )
    if not _is_local(connection):
        raise PermissionDeniedError(
            "only programs on the server's machine may do this, and on a Unix socket only those of "
            "its user",
            "Run it there, or give a key `admin = true` in the keys' file.",
        )


def _is_local(connection: Connection) -> bool:
    headers, client = connection.headers, connection.scope.get("client")
    if any(name in headers for name in _FORWARDED):
        return False
    page = headers.get("origin")
    if page is not None and page.partition("://")[2].lower() != headers.get("host", "").lower():
        return False  # allowed by --cors-origin, which says nothing about administration
    uid = connection.scope.get("state", {}).get(PEER_UID)
    if uid is not None:
        return uid in (0, os.getuid())
    return client is None or not client[0] or client[0] in _LOOPBACK


def _continued(key: Key, old: Key | None) -> Key:
    """Return a key that was read again, with its account: requests that run will leave that one."""
    if old is None or old is key:
        return key
    old.account.limit(key.account)
    return attrs.evolve(key, account=old.account)


def owner_of(connection: Connection) -> str:
    """The owner of what a request stores (`Record.owner`)."""
    record = record_of(connection.scope)
    return "" if record is None else record.owner


def read_keys(file: Path) -> tuple[Key, ...]:
    """Read a file of keys. Raises OptionError."""
    try:
        content = tomllib.loads(contents(file, _MOST_BYTES).decode())
        if file.stat().st_mode & 0o044 and any("key" in t for t in _tables(content)):
            log.warning("other users can read the keys in %s: chmod 600 %s", file, file)
    except CheckpointError as error:
        raise OptionError(f"cannot read the keys in {file}: {error.cause}", error.remedy) from error
    except (OSError, ValueError) as error:
        raise OptionError(
            f"cannot read the keys in {file}: {error}", "Give a TOML file with [keys.NAME] tables."
        ) from error
    tables = content.pop("keys", {})
    if (
        content
        or not isinstance(tables, dict)
        or not all(isinstance(t, dict) for t in tables.values())
    ):
        raise OptionError(
            f"{file} has more than keys: {', '.join(content) or 'keys is not a table'}",
            "Write a table for each key: [keys.NAME].",
        )
    return tuple(_parse(name, table) for name, table in tables.items())


def _tables(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    tables = content.get("keys")
    return [t for t in tables.values() if isinstance(t, dict)] if isinstance(tables, dict) else []


@frozen(kw_only=True)
class KeyFields:
    """A key's table in the file of keys."""

    key: str | None = None
    """The key itself, in ASCII without spaces. Prefer `sha256`."""
    sha256: str | None = None
    """The key's SHA-256 in hexadecimal: `printf %s KEY | sha256sum`."""
    concurrency: int | None = None
    """The most requests at once."""
    requests_per_minute: int | None = None
    """POST requests."""
    tokens_per_minute: int | None = None
    """Prompt and generated tokens together."""
    priority: int | None = None
    """The best priority that its requests may have; lower runs first."""
    models: tuple[str, ...] = ()
    """The models that it may use, by any of their names. [default: all]"""
    admin: bool = False
    """Whether it may load and unload models."""
    cache_group: str | None = None
    """Keys with the same group share cached prefixes. [default: with no other key]"""
    stored_bytes: int | None = None
    """The most bytes of its responses, conversations and files. [default: what fits]"""
    files: int | None = None
    """The most files that it may have. [default: 10000]"""
    batches: int | None = None
    """The most of its batches that have not ended. [default: 64]"""

    @classmethod
    def of(cls, name: str, table: Mapping[str, Any]) -> Self:
        """Check a table. Raises OptionError."""
        known = {a.name: a for a in attrs.fields(cls)}
        for given, value in table.items():
            if given not in known:
                near = get_close_matches(given, known, n=1)
                raise OptionError(
                    f"the key {name!r} has an unknown field {given!r}",
                    f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}.",
                )
            if problem := _problem(given, value):
                raise OptionError(f"{given} of the key {name!r} {problem}", "Correct the file.")
        values: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
        return cls(**values)


def _problem(name: str, value: Any) -> str | None:
    if name in ("key", "sha256"):
        return None if isinstance(value, str) else "is not a string"
    if name == "cache_group":
        return None if isinstance(value, str) and value else "is not a name"
    if name == "admin":
        return None if isinstance(value, bool) else "is not true or false"
    if name == "models":
        texts = isinstance(value, list) and all(isinstance(v, str) for v in value)
        return None if texts else "is not a list of names"
    if not isinstance(value, int) or isinstance(value, bool):
        return "is not an integer"
    return "is not at least 1" if value < 1 and name != "priority" else None


def _parse(name: str, table: Mapping[str, Any]) -> Key:
    fields = KeyFields.of(name, table)
    if (fields.key is None) == (fields.sha256 is None):
        raise OptionError(f"the key {name!r} needs one of key and sha256", "Give either of them.")
    requests, tokens = fields.requests_per_minute, fields.tokens_per_minute
    return Key(
        name=name,
        digest=_digest(name, fields),
        models=fields.models,
        priority=fields.priority,
        admin=fields.admin,
        cache_group=fields.cache_group or "",
        quota=Quota(fields.stored_bytes, fields.files, fields.batches),
        account=Account(
            name,
            fields.concurrency,
            Bucket(requests) if requests is not None else None,
            Bucket(tokens) if tokens is not None else None,
        ),
    )


def _digest(name: str, fields: KeyFields) -> bytes:
    if fields.key is None:
        try:
            digest = bytes.fromhex(fields.sha256 or "")
        except ValueError:
            digest = b""
        if len(digest) != 32:
            raise OptionError(
                f"sha256 of the key {name!r} is not 64 hexadecimal digits",
                "Make it by: printf %s KEY | sha256sum",
            )
        return digest
    if not fields.key or not all("!" <= c <= "~" for c in fields.key):
        raise OptionError(
            f"the key {name!r} cannot be sent in a header: it is empty, or has "
            "spaces or characters that are not ASCII",
            "Use letters, digits and punctuation: openssl rand -hex 24",
        )
    return hashlib.sha256(fields.key.encode()).digest()
