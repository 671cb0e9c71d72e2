"""MobileNet-V5 beside timm's, whose results are stored for where it is not installed.

`python test_mobilenet.py` writes them anew.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gemma3n_toy import drawn
from torch import Tensor, nn

from inferno_gemma.mobilenet import MobileNet
from inferno_gemma.mobilenet_config import MobileNetConfig

STORED = Path(__file__).parent / "mobilenet.npz"
CASES = ((0.0625, 4, 64), (0.0625, 2, 128), (0.125, 2, 96))
"""Of what is multiplied the published numbers of channels; tokens and pixels of a side."""


def images(pixels: int) -> Tensor:
    """Return one, (1, 3, pixels, pixels)."""
    return torch.rand(1, 3, pixels, pixels, generator=torch.Generator().manual_seed(pixels))


def ours(multiplier: float, side: int) -> nn.Module:
    return drawn(MobileNet(MobileNetConfig(channel_multiplier=multiplier, tokens=side**2)))


def theirs(multiplier: float, side: int, **more: Any) -> nn.Module:
    model: nn.Module = import_module("timm").create_model(
        "mobilenetv5_300m_enc",
        channel_multiplier=multiplier,
        msfa_output_resolution=side,
        **more,
    )
    return model.eval()


@pytest.mark.parametrize(("multiplier", "side", "pixels"), CASES)
def test_results_are_timm_s(multiplier: float, side: int, pixels: int) -> None:
    with np.load(STORED) as stored, torch.inference_mode():
        expected = torch.from_numpy(stored[f"{multiplier} {side} {pixels}"])
        computed = ours(multiplier, side)(images(pixels))[:, :: 2048 // 64]
        assert computed.shape == (1, 64, side, side)
        torch.testing.assert_close(computed, expected, rtol=1e-4, atol=1e-4)


def test_a_published_model_has_timm_s_parameters() -> None:
    """All 294 million, by name and shape."""
    pytest.importorskip("timm")
    with torch.device("meta"):
        shapes = {n: p.shape for n, p in MobileNet(MobileNetConfig()).named_parameters()}
        assert shapes == {n: p.shape for n, p in theirs(1.0, 16).named_parameters()}


def _store() -> None:
    results = {}
    for multiplier, side, pixels in CASES:
        model = theirs(multiplier, side)
        model.load_state_dict(ours(multiplier, side).state_dict())
        with torch.inference_mode():
            computed = model(images(pixels))[:, :: 2048 // 64]
        results[f"{multiplier} {side} {pixels}"] = computed.numpy()
    np.savez_compressed(STORED, **results)


if __name__ == "__main__":
    _store()
