"""An adapter beside a trained model with packed matrices, against the model with it merged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.peft_adapters import ALPHA, write_peft

from inferno.contracts import WriteOptions
from inferno.request.requests import AdapterRef
from inferno.testing.adapters import SCALE, MemoryAdapter, with_adapters
from inferno.testing.tiny import generate, load_toy, torch_only
from inferno_convert.convert import convert

RANK = int(ALPHA / SCALE)
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]


def adapter_of(shapes: dict[str, tuple[int, int]]) -> MemoryAdapter:
    """An adapter of every linear layer, with small products."""
    draw, pairs = torch.Generator().manual_seed(5), {}
    for path, (outputs, inputs) in sorted(shapes.items()):
        a_RI = torch.randn(RANK, inputs, generator=draw) / inputs**0.5
        pairs[path] = a_RI, torch.randn(outputs, RANK, generator=draw) * 0.2
    return MemoryAdapter(AdapterRef("own", "0" * 32, "", "memory"), pairs)


@pytest.mark.slow
def test_the_packed_model_with_an_adapter_is_the_merged_one(gguf_file: str, tmp_path: Path) -> None:
    """In float32, where the packed matrices have no error but their own."""
    catalog = torch_only()
    plain = load_toy(gguf_file, catalog)
    room = with_adapters(plain, [], ())
    assert room.adapters is not None
    given = adapter_of({path: place.shape for path, place in room.adapters.places.items()})
    adapter, exact = write_peft(tmp_path / "adapter", given.pairs), WriteOptions(dtype="float32")
    convert(gguf_file, "safetensors", tmp_path / "merged", exact, adapters=[str(adapter)])
    theirs_V = load_toy(tmp_path / "merged", catalog).logits(PROMPT)
    toy = with_adapters(load_toy(gguf_file, catalog), [given], ())
    refs = [None, given.ref]
    base_V, ours_V = (each.logits_NV[0] for each in generate(toy, [PROMPT, PROMPT], adapters=refs))
    assert float((ours_V - base_V).std()) > 0.1 * float(base_V.std()), "the adapter matters"
    assert float((ours_V - theirs_V).norm()) < 1e-4 * float(theirs_V.norm())
