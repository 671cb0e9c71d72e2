"""What policies of the prefix cache and sessions keep, on made-up traffic: agents that pause
between turns, users of one system prompt, and long documents that never come back. No model runs:
blocks are counted, and what computing the missing ones costs, in units of a block without
attention.

    python benchmarks/cache_policies.py
    python benchmarks/cache_policies.py --blocks 2000 --pause 60
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator
from time import process_time

from attrs import define, field

from inferno.catalog import load_catalog
from inferno.contracts import PrefixCache, SessionHint, SessionNeed, Sessions

ATTENTION_DEPTH = 1024
"""Blocks before one at which its attention costs as much as its matrices."""
BLOCK = 16


@define
class Asked:
    """A request: whose, and the blocks of its prompt."""

    kind: str
    name: str
    keys: list[bytes]


@define
class Cache:
    """A policy, with sessions or without, that is asked one request after the other."""

    prefix: PrefixCache
    num_blocks: int
    sessions: Sessions | None = None
    free: list[int] = field(init=False)
    asked: Counter[str] = field(factory=Counter)
    found: Counter[str] = field(factory=Counter)
    cost: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.free = list(range(self.num_blocks))

    def ask(self, request: Asked) -> None:
        keys, blocks = request.keys, self.prefix.match(request.keys)
        self.asked[request.kind] += len(keys)
        self.found[request.kind] += len(blocks)
        self.cost += sum(1 + i / ATTENTION_DEPTH for i in range(len(blocks), len(keys)))
        for block in blocks:
            self.prefix.touch(block)
        missing = len(keys) - len(blocks) - len(self.free)
        if missing > 0:
            self.free += self.prefix.evict(missing)
        for i in range(len(blocks), len(keys)):
            parent = keys[i - 1] if i else None
            blocks.append(self.prefix.insert(keys[i], self.free.pop(), parent))
        if self.sessions is not None and request.kind == "agents":
            self.sessions.note(SessionHint(request.name), keys)
        for block in reversed(blocks):
            self.prefix.release(block)


def traffic(args: argparse.Namespace) -> Iterator[Asked]:
    """Each agent's next turn comes after `pause` other requests, or twice that."""
    draw = random.Random(args.seed)
    turns, due = Counter[int](), {i: draw.randrange(args.pause) for i in range(args.agents)}
    system = keys_of("system", 40)
    for now in range(args.requests):
        agent = next((i for i, when in due.items() if when <= now), None)
        if agent is not None:
            due[agent] = now + draw.randint(args.pause, 2 * args.pause)
            turns[agent] = turns[agent] % 30 + 1  # then it summarizes, and begins again
            yield Asked("agents", str(agent), keys_of(f"agent {agent}", 150 + 25 * turns[agent]))
        elif draw.random() < 0.5:
            yield Asked("users", "", [*system, *keys_of(f"user {now}", draw.randint(2, 20))])
        else:
            yield Asked("documents", "", keys_of(f"document {now}", draw.randint(50, 400)))


def keys_of(name: str, count: int) -> list[bytes]:
    return [f"{name} {i}".encode() for i in range(count)]


def caches(args: argparse.Namespace) -> Iterator[tuple[str, Cache]]:
    catalog = load_catalog()
    [keeper] = catalog.of("inferno_session_keepers")
    need = SessionNeed(block_size=BLOCK, num_blocks=args.blocks, ttl=1e6, quota=1 << 20)
    for policy in ("lru", "cost"):
        for with_sessions in (False, True):
            prefix = catalog.cache_policy(policy).item.build(args.blocks)
            assert prefix is not None, "these policies cache"
            if with_sessions:
                sessions = keeper.item.build(need, prefix)
                yield f"{policy}, sessions", Cache(sessions.cache, args.blocks, sessions)
            else:
                yield policy, Cache(prefix, args.blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--blocks", type=int, default=6000)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--pause", type=int, default=40, help="Requests between an agent's turns.")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    requests = list(traffic(args))
    kinds = ("agents", "users", "documents")
    print("| policy |", " | ".join(f"{kind} found" for kind in kinds), "| cost | us a block |")
    print("|", " | ".join(["---"] * 6), "|")
    base = 0.0
    for name, cache in caches(args):
        begin = process_time()
        for request in requests:
            cache.ask(request)
        each = 1e6 * (process_time() - begin) / cache.asked.total()
        base = base or cache.cost
        shares = (f"{cache.found[kind] / cache.asked[kind]:.1%}" for kind in kinds)
        print("|", name, "|", " | ".join(shares), f"| {cache.cost / base:.2f} | {each:.2f} |")


if __name__ == "__main__":
    main()
