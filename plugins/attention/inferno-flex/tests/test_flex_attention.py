"""FlexAttention against naive attention in float64, in the conformance kit."""

from __future__ import annotations

import pytest
import torch

from inferno.contracts import AttentionNeed, Device
from inferno.testing import AttentionBackendTests, load_toy, torch_only
from inferno_flex import attention


class TestFlex(AttentionBackendTests):
    backend = "flex"
    sparse = True


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
class TestFlexOnAGpu(AttentionBackendTests):
    backend = "flex"
    device = "cuda"
    sparse = True
    dtypes = ("bfloat16", "float16")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
class TestFlexCompiledOnAGpu(TestFlexOnAGpu):
    backend = "flex-compiled"


def test_the_demo_models_tokens_are_torchs() -> None:
    """Beside torch's attention for the prompts, over its cache."""
    pytest.importorskip("inferno_demo")
    prompts = [[5 * i % 500 + 10 for i in range(length)] for length in (70, 3, 21)]
    answers = [
        [
            each.token_ids
            for each in load_toy("demo", torch_only(), attention_backend=name).generate(prompts, 8)
        ]
        for name in ("torch", "flex", "prompts=torch,tokens=flex")
    ]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (Device("mps"), "FlexAttention runs on CPUs and CUDA devices, not on mps"),
        (
            Device("cuda"),
            "its compiled kernels need compute capability 8.0, which cuda:0 does not tell",
        ),
        (Device("cuda", capability=(7, 0)), "its compiled kernels need compute capability 8.0"),
    ],
    ids=str,
)
def test_a_device_it_cannot_use_is_refused_with_the_reason(device: Device, said: str) -> None:
    need = AttentionNeed(
        num_heads=8, num_kv_heads=2, head_dim=64, scale=1.0, dtype="float16", device=device
    )
    reason = attention.refuses_compiled(need)
    assert reason is not None and reason.startswith(said)
