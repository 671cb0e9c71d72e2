"""Plans of models with chunked attention."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from inferno.catalog import Catalog, Offer
from inferno.contracts import AttentionNeed, AttentionSpec, Device
from inferno.errors import OptionError, UnsupportedError
from inferno.plan import Options
from inferno.plan.attention import choose_attention
from inferno.plan.cache_size import CacheSizes, describe
from inferno.testing.tiny import torch_only

HOOK = "inferno_attention_backends"
SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)


def needs(*chunks: int | None) -> dict[int, AttentionNeed]:
    given: dict[str, Any] = {"dtype": "float32", "device": Device("cpu"), "cache_dtype": "auto"}
    return {
        layer: AttentionNeed.of(attrs.evolve(SPEC, attention_chunk=chunk), **given)
        for layer, chunk in enumerate(chunks)
    }


@pytest.mark.parametrize(
    ("chunks", "size"), [((8192, None), 16), ((24,), 12), ((24, 36), 12), ((10, 14), 2), ((7,), 7)]
)
def test_chunks_begin_with_a_block(chunks: tuple[int | None, ...], size: int) -> None:
    uses, block_size = choose_attention(torch_only(), needs(*chunks), Options()).value
    assert block_size == size
    assert [use.need.attention_chunk for use in uses] == list(chunks)


def test_a_block_size_that_does_not_divide_a_chunk_is_refused() -> None:
    with pytest.raises(OptionError, match="16 does not divide the 24 tokens") as caught:
        choose_attention(torch_only(), needs(None, 24), Options(block_size=16))
    assert caught.value.remedy


def test_a_backend_that_prepares_whole_steps_is_refused() -> None:
    catalog = torch_only()
    offer = next(each for each in catalog.of(HOOK) if each.item.name == "torch")
    item = attrs.evolve(offer.item, begin=lambda need, batch: None)
    changed = Catalog(catalog.plugins, {**catalog.offers, HOOK: (Offer(item, "theirs"),)})
    assert changed.attention(needs(None)[0]).offer.item is item
    with pytest.raises(UnsupportedError, match="before they are cut into chunks"):
        changed.attention(needs(8)[0])


def test_steps_with_prompts_are_not_captured() -> None:
    """How often chunks cut them is not known from their shape."""
    catalog = torch_only()
    offer = next(each for each in catalog.of(HOOK) if each.item.name == "torch")
    item = attrs.evolve(offer.item, captures_prompts=True)
    changed = Catalog(catalog.plugins, {**catalog.offers, HOOK: (Offer(item, "theirs"),)})
    uses, _ = choose_attention(changed, needs(None, 8), Options()).value
    assert [use.captures_prompts for use in uses] == [True, False]


def test_chunks_have_a_group_of_their_own() -> None:
    """Beside a window of as many tokens; and none where no context is longer."""
    given = needs(None, 64, 64)
    given[3] = attrs.evolve(given[0], sliding_window=64)
    uses, block_size = choose_attention(torch_only(), given, Options()).value
    sizes = CacheSizes(uses, (), block_size, max_num_seqs=2, tokens_in_flight=32, room=1 << 30)
    full, *others = sizes.choose(1024)
    assert (full.kind, full.layers) == ("full", (0,))
    assert {(group.kind, group.window): group.layers for group in others} == {
        ("chunk", 64): (1, 2),
        ("window", 64): (3,),
    }
    assert "for chunk 64 14 blocks" in describe((full, *others))
    assert [group.kind for group in sizes.choose(64)] == ["full"]


def test_waves_are_not_asked_for() -> None:
    """They go by a key's position in its sequence."""
    spec = attrs.evolve(SPEC, attention_chunk=8)
    given: dict[str, Any] = {"dtype": "float32", "device": Device("cpu"), "cache_dtype": "int8"}
    assert not AttentionNeed.of(spec, **given).waves and AttentionNeed.of(SPEC, **given).waves
