"""The separate addresses at which engines and ranks publish, listen and connect."""

from __future__ import annotations

import re

from inferno.errors import OptionError
from inferno.plan.options import Options

_WITH_PORT = re.compile(r"(\w+://([^/]+)):(\d+)/?", re.ASCII)
_HERE = ("*", "0.0.0.0", "[::]")
_MOST_PORT = 65535


def address_of(url: str, engine: int, ranks: int = 1, rank: int = 0) -> str:
    """Return the address of one of several engines that share a URL, or of one of its `ranks`: the
    next ports, as vLLM counts them for its data-parallel ranks, or the next names, which ranks
    follow after a dot. That of the first is the URL."""
    if not engine and not rank:
        return url
    if (parts := _WITH_PORT.fullmatch(url)) is not None:
        return f"{parts[1]}:{int(parts[3]) + engine * ranks + rank}"
    return f"{url}{f'-{engine}' * bool(engine)}{f'.{rank}' * bool(rank)}"


def hosts_of(url: str) -> list[str]:
    """Return the hosts that a URL with a port names: where ranks of several machines listen, it has
    one for each, `tcp://HOST+HOST:PORT`, and a rank's port tells which of them is meant."""
    parts = _WITH_PORT.fullmatch(url)
    return [] if parts is None else parts[2].split("+")


def urls_of(text: str) -> list[str]:
    """Return the URLs of a list that is separated by commas."""
    return [url.strip() for url in text.split(",")]


def check_addresses(options: Options) -> None:
    """Raise OptionError if engines and ranks would listen at each other's ports, or past the last
    one."""
    counts = {
        "--kv-events": (options.kv_events, options.dp),
        "--kv-events-replay": (options.kv_events_replay, options.dp),
        "--prefill-for": (options.prefill_for, options.dp * options.ranks),
    }
    taken = list[tuple[str, str, int, int]]()
    for flag, (url, count) in counts.items():
        if url is None or (parts := _WITH_PORT.fullmatch(url)) is None:
            continue
        host, first = parts[2], int(parts[3])
        if first + count - 1 > _MOST_PORT:
            need = f"{count} processes need {count} ports, and " if count > 1 else ""
            raise OptionError(
                f"{flag} {url}: {need}the last port is {_MOST_PORT}",
                f"Use a port up to {_MOST_PORT + 1 - count}.",
            )
        for other, at, start, length in taken:
            is_disjoint = first + count <= start or start + length <= first
            if is_disjoint or not _is_one_host(host, at):
                continue
            if count == length == 1:  # both were given: the system refuses the second one
                continue
            raise OptionError(
                f"{other} and {flag} share ports: their {length} and {count} processes need those "
                f"from {start} and from {first}",
                f"Use another port: {flag} {parts[1]}:{start + length}.",
            )
        taken.append((flag, host, first, count))


def _is_one_host(one: str, other: str) -> bool:
    def is_here(host: str) -> bool:
        return host in (*_HERE, "localhost") or host.startswith("127.")

    return one == other or ({one, other} & {*_HERE} != set() and is_here(one) and is_here(other))
