"""Chooses the backend of each attention layer, or two: for prompts and for single tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import lcm

from attrs import frozen

from inferno.catalog import Catalog, Offer, Refusal
from inferno.contracts import AttentionBackend, AttentionNeed
from inferno.errors import OptionError
from inferno.plan.decided import Decided
from inferno.plan.options import Options
from inferno.plan.plan import AttentionUse, BackendUse

AUTO = "auto"

STATE_BLOCK_SIZE = 64
"""Tokens per block of a model whose layers keep nothing for a block."""


@frozen
class Wanted:
    """The names that a user gave."""

    prompts: str
    """Of steps with prompts, and of all if `tokens` is None."""
    tokens: str | None = None
    """Of steps in which every sequence has one token."""

    @classmethod
    def of(cls, text: str) -> Wanted:
        """Parse `--attention-backend`: auto, a name, or `prompts=NAME,tokens=NAME`. Raises
        OptionError."""
        if "=" not in text:
            return cls(text)
        pairs = [part.partition("=") for part in text.split(",")]
        given = {work.strip(): name.strip() for work, _, name in pairs}
        if len(given) < len(pairs) or not given.keys() <= {"prompts", "tokens"} or "" in {
            *given.values()
        }:  # fmt: skip
            raise OptionError(
                f"attention_backend {text!r} is not understood",
                "Name one backend, or one for prompts and one for steps of single tokens: "
                "prompts=NAME,tokens=NAME.",
            )
        return cls(given.get("prompts", AUTO), given.get("tokens", AUTO))


@frozen
class _Pair:
    """The backends of one need: the same twice, unless they were asked for apart."""

    prompts: Offer[AttentionBackend]
    tokens: Offer[AttentionBackend]
    refusals: tuple[Refusal, ...]

    def use(self, need: AttentionNeed, layers: tuple[int, ...], block_size: int) -> AttentionUse:
        prompts, tokens = self.prompts, self.tokens
        cache = dict(prompts.item.cache(need, block_size))
        if tokens != prompts and dict(tokens.item.cache(need, block_size)) != cache:
            raise OptionError(
                f"{prompts.item.name} and {tokens.item.name} cannot share a cache of "
                f"{block_size} tokens per block",
                "Name one of them for prompts and single tokens, or another --block-size.",
            )
        return AttentionUse(
            name=prompts.item.name,
            distribution=prompts.distribution,
            tokens=None if tokens == prompts else BackendUse(tokens.item.name, tokens.distribution),
            need=need,
            layers=layers,
            cache=cache,
            # How often chunks cut a step is not known from its shape.
            captures_prompts=prompts.item.captures_prompts and need.attention_chunk is None,
        )


def choose_attention(
    catalog: Catalog, needs: Mapping[int, AttentionNeed], options: Options
) -> Decided[tuple[tuple[AttentionUse, ...], int]]:
    """Choose the backends of the layers with attention, and the tokens per block. Raises
    UnsupportedError with every refusal."""
    layers = defaultdict[AttentionNeed, list[int]](list)
    for layer, need in needs.items():
        layers[need].append(layer)
    wanted = Wanted.of(options.attention_backend)
    chosen = {need: _choose(catalog, need, wanted, options.block_size) for need in layers}
    storing = [pair for need, pair in chosen.items() if not need.bidirectional]
    items = [offer.item for pair in storing for offer in (pair.prompts, pair.tokens)]
    chunks = {need.attention_chunk for need in layers if need.attention_chunk is not None}
    block_size = options.block_size or _block_size(items)
    if uneven := sorted(chunk for chunk in chunks if chunk % block_size):
        if options.block_size:
            raise OptionError(
                f"--block-size {block_size} does not divide the {uneven[0]} tokens that layers "
                "attend to at once",
                "Leave it out, or name one that does.",
            )
        # Chunks begin with a block, whichever backends that leaves.
        block_size = max(n for n in range(1, block_size) if not any(c % n for c in chunks))
        chosen = {need: _choose(catalog, need, wanted, block_size) for need in layers}
    return Decided(
        (
            tuple(pair.use(need, tuple(layers[need]), block_size) for need, pair in chosen.items()),
            block_size,
        ),
        tuple(
            ("attention", offer)
            for pair in chosen.values()
            for offer in dict.fromkeys((pair.prompts, pair.tokens))
        ),
        tuple(refusal for pair in chosen.values() for refusal in pair.refusals),
    )


def _choose(catalog: Catalog, need: AttentionNeed, wanted: Wanted, block_size: int | None) -> _Pair:
    """Choose the backend that was named first, so that the other one can be chosen to suit it."""
    if wanted.tokens is None:
        one = catalog.attention(need, wanted.prompts, block_size)
        return _Pair(one.offer, one.offer, one.refusals)
    if wanted.prompts != AUTO:
        first = prompts = catalog.attention(need, wanted.prompts, block_size)
        then = tokens = catalog.attention(need, wanted.tokens, block_size, beside=prompts.item)
    else:
        first = tokens = catalog.attention(need, wanted.tokens, block_size)
        then = prompts = catalog.attention(need, wanted.prompts, block_size, beside=tokens.item)
    refusals = {(each.name, each.distribution): each for each in (*first.refusals, *then.refusals)}
    for offer in (prompts.offer, tokens.offer):
        refusals.pop((offer.item.name, offer.distribution), None)
    return _Pair(prompts.offer, tokens.offer, tuple(refusals.values()))


def _block_size(backends: list[AttentionBackend]) -> int:
    """Return the largest preferred number of tokens per block, rounded up to what all can read."""
    if not backends:
        return STATE_BLOCK_SIZE
    multiple = lcm(*(backend.block_multiple for backend in backends))
    largest = max(backend.block_size for backend in backends)
    return -(-largest // multiple) * multiple
