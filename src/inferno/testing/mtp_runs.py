"""Models with multi-token-prediction layers, as their tests write, load and run them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from inferno.catalog import Catalog
from inferno.core.engine import Engine
from inferno.plan import Opened, Options, open_model, with_num_blocks
from inferno.plan.draft_cost import Acceptance
from inferno.request.requests import EngineOutput, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.mtp_reference import MTPReference
from inferno.testing.tiny import ragged_prompts

ADDED = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")
"""Ends of the names of matrices whose results are added to the residual stream."""
PARAMS = (
    SamplingParams(temperature=0, max_tokens=40, logprobs=2),
    SamplingParams(temperature=0.7, seed=3, max_tokens=40),
    SamplingParams(temperature=0.9, seed=4, top_p=0.8, frequency_penalty=0.6, max_tokens=30),
    SamplingParams(temperature=0, repetition_penalty=1.5, max_tokens=30),
    SamplingParams(temperature=1.2, seed=5, top_k=10, max_tokens=1),
)


def write(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    path.mkdir(exist_ok=True)
    save_file({n: t.contiguous() for n, t in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    return path


def opened(path: Path, catalog: Catalog, speculative: str | None = "mtp", **options: Any) -> Opened:
    few = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": 160}
    given = {"dtype": "float32", "device": "cpu", **few, **options}
    return open_model(str(path), Options(speculative=speculative, **given), catalog)


def load(
    path: Path,
    catalog: Catalog,
    speculative: str | None = "mtp",
    num_blocks: int = 0,
    **options: Any,
) -> Engine:
    """Return an engine, with only so many blocks if given, in which 64 tokens fit."""
    with opened(path, catalog, speculative, **options) as case:
        if num_blocks:
            groups = with_num_blocks(case.plan.groups, num_blocks)
            case = attrs.evolve(case, plan=attrs.evolve(case.plan, groups=groups, max_model_len=64))
        return Engine.load(case)


def draft_always(patched: pytest.MonkeyPatch) -> None:
    """Propose as many drafts as allowed, however few are accepted."""
    patched.setattr(Acceptance, "count", lambda self, cost, num_running: cost.most)


def requests(
    config: Mapping[str, Any], params: Sequence[SamplingParams] = PARAMS, length: int | None = None
) -> list[Request]:
    prompts = ragged_prompts(config["vocab_size"], (5, 70, 17, 33, 1))
    return [
        Request(id=str(i), token_ids=tuple(prompts[i % 5][:length]), params=each)
        for i, each in enumerate(params)
    ]


def run(engine: Engine, wanted: Sequence[Request]) -> dict[str, list[EngineOutput]]:
    """Return each request's outputs."""
    outputs = defaultdict[str, list[EngineOutput]](list)
    for request in wanted:
        engine.submit(request)
    while engine.busy:
        for output in engine.step():
            outputs[output.request_id].append(output)
        engine.check()
    return dict(outputs)


def assert_same(
    ours: Mapping[str, Sequence[EngineOutput]], theirs: Mapping[str, Sequence[EngineOutput]]
) -> None:
    assert ours.keys() == theirs.keys()
    for name, outputs in theirs.items():
        for mine, other in zip(ours[name], outputs, strict=True):
            assert (mine.token_id, mine.finish) == (other.token_id, other.finish)
            if other.logprobs is not None:
                assert mine.logprobs is not None
                assert mine.logprobs.logprob == pytest.approx(other.logprobs.logprob, abs=1e-3)


def knowing(
    config: Mapping[str, Any],
    stored: Callable[[Mapping[str, Tensor]], dict[str, Tensor]],
    folder: Path,
    twin: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model whose next token depends on the last one only, with layers that know it: that
    of the `twin`, if given, as `stored` under the config."""
    tensors, size = MTPReference.of(twin or config).tensors(folder), config["hidden_size"]
    for name, tensor in tensors.items():
        if name.endswith(ADDED):
            tensor.zero_()
        elif name.endswith("eh_proj.weight"):
            tensor.copy_(torch.cat([torch.eye(size), torch.zeros(size, size)], 1))
        elif "norm" in name and tensor.ndim == 1:
            tensor.fill_(1.0)
    return write(folder / "toy", config, stored(tensors))
