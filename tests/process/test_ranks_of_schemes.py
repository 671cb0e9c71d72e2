"""Ranks that share a model of each scheme: the tokens are those of one process, and with native
kernels, which round what they multiply, as near as that allows.

Suffixes: N contexts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import WriteOptions
from inferno.plan import Options, open_model
from inferno.testing.thread_ranks import GREEDY, SEEDED, answers, load_shared, tokens_of
from inferno.testing.tiny import without_kernels
from inferno.weights.loading import load_model
from inferno_convert.convert import convert

PROMPTS = [[207, 932, 879], list(range(30, 70)), [5]]
SCHEMES: dict[str, dict[str, Any]] = {
    "gptq-int4": {"group": 32},
    "awq-int4": {"group": 32},
    "compressed-tensors": {"group": 32},
    "fp8": {},
    "q8_0": {},
    "q4_k_m": {},
    "iq4_nl": {},
}


def written(scheme: str, folder: Path) -> Path:
    """Return the demo model in this scheme."""
    path = folder / ("toy" if SCHEMES[scheme] or scheme == "fp8" else "toy.gguf")
    convert("demo", scheme, path, WriteOptions(**SCHEMES[scheme]))
    return path


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return without_kernels(load_catalog())


def same_tokens(path: Path, catalog: Catalog, ranks: int) -> None:
    """In one process, with ranks, and in two pipeline stages."""
    runs = []
    for count, stages in ((1, 1), (ranks, 1), (1, 2)):
        engine = load_shared(path, catalog, count, pp=stages)
        params = [evolve(each, max_tokens=8) for each in (GREEDY, SEEDED)]
        runs.append([tokens_of(answers(engine, PROMPTS, each)) for each in params])
        shares = engine.plan.ranks
        assert shares is None or shares.divided or shares.pipeline
        engine.close()
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_ranks_give_the_tokens_of_one_process(
    scheme: str, catalog: Catalog, tmp_path: Path
) -> None:
    same_tokens(written(scheme, tmp_path), catalog, 2)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_columns_in_another_order_are_gathered(
    ranks: int, catalog: Catalog, tmp_path: Path
) -> None:
    """GPTQ with act-order: ranks take the inputs of all, and compute some outputs."""
    text = tmp_path / "text.txt"
    text.write_text("The columns of the largest activations come first. " * 40)
    path, options = tmp_path / "toy", WriteOptions(group=32, act_order=True)
    convert("demo", "gptq-int4", path, options, calibrate=text)
    g_idx = load_file(path / "model.safetensors")["model.layers.0.mlp.down_proj.g_idx"]
    assert (g_idx.diff() < 0).any(), "columns are in another order"
    same_tokens(path, catalog, ranks)


def next_logits(
    path: Path, ranks: int, contexts: list[list[int]], options: dict[str, Any]
) -> Tensor:
    """Return the logits of the token after each context, (N, V), by the native kernels."""
    given = {"threads": 1, "packed_cache": "none", "memory": "2GiB", **options}
    engine = load_shared(path, load_catalog(), ranks, **given)
    runner: Any = engine._runner
    seen = list[Tensor]()

    def record(compute: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        def recorded(*args: Any) -> Tensor | None:
            if (logits_SV := compute(*args)) is not None:
                seen.append(logits_SV[-1].float().clone())
            return logits_SV

        return recorded

    runner.logits_of, runner._replayed = record(runner.logits_of), record(runner._replayed)
    rows = list[Tensor]()
    for context in contexts:
        answers(engine, [context], evolve(GREEDY, max_tokens=1, logprobs=1))
        rows.append(seen[-1])
    engine.close()
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [
        ("gptq-int4", "bfloat16"),
        *(
            pytest.param(scheme, dtype, marks=pytest.mark.slow)
            for scheme in SCHEMES
            for dtype in ("float32", "bfloat16")
            if (scheme, dtype) != ("gptq-int4", "bfloat16")
        ),
    ],
)
def test_native_ranks_round_as_near_as_one_process(scheme: str, dtype: str, tmp_path: Path) -> None:
    """Free to go on, one near tie makes all later tokens others; so each context is given."""
    pytest.importorskip("inferno_cpu._native", reason="needs native kernels")
    path = written(scheme, tmp_path)
    engine = load_shared(path, load_catalog(), 1, dtype=dtype, threads=1, packed_cache="none")
    drawn = tokens_of(answers(engine, PROMPTS, evolve(GREEDY, max_tokens=40)))
    engine.close()
    contexts = [
        [*prompt, *cast(list[int], tokens[:count])]
        for prompt, tokens in zip(PROMPTS, drawn, strict=True)
        for count in range(0, 40, 2)
    ]
    one_NV, two_NV = (next_logits(path, ranks, contexts, {"dtype": dtype}) for ranks in (1, 2))
    spread_N = one_NV.amax(1) - one_NV.amin(1)
    assert ((two_NV - one_NV).square().mean(1).sqrt() <= 1e-2 * spread_N).all()
    best_N2 = one_NV.topk(2).values
    sure_N = best_N2[:, 0] - best_N2[:, 1] > 0.1
    assert sure_N.sum() > len(contexts) // 2, "most say something"
    assert torch.equal(one_NV.argmax(1)[sure_N], two_NV.argmax(1)[sure_N])


class Reads(TorchDispatchMode):
    """Counts the bytes of stored tensors that operators read; a view reads nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given = list[Tensor]()
        self._owners = dict[int, int]()
        self._seen = dict[tuple[Any, ...], int]()

    def give(self, tensor: Tensor) -> Tensor:
        self.given.append(tensor)  # kept: another may not take its memory
        self._owners[tensor.untyped_storage().data_ptr()] = len(self.given)
        return tensor

    @property
    def total(self) -> int:
        return sum(self._seen.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = {t.untyped_storage().data_ptr() for t in _plain(result)}
        for tensor in _plain((args, kwargs or {})):
            address = tensor.untyped_storage().data_ptr()
            if address in self._owners and address not in made:
                place = address, tensor.storage_offset() * tensor.itemsize, *tensor.shape
                self._seen[place] = tensor.nbytes
        return result


def _plain(values: Any) -> list[Tensor]:
    tensors = [t for t in tree_leaves(values) if isinstance(t, Tensor)]
    return [t for t in tensors if not t.is_meta and t.layout == torch.strided]


@pytest.mark.parametrize(
    ("scheme", "rank"),
    [
        ("gptq-int4", 1),
        *(
            pytest.param(scheme, rank, marks=pytest.mark.slow)
            for scheme in ("gptq-int4", "awq-int4", "compressed-tensors", "q8_0")
            for rank in (0, 1)
        ),
    ],
)
def test_a_rank_reads_its_share(scheme: str, rank: int, catalog: Catalog, tmp_path: Path) -> None:
    """And at most a twentieth more: norms, and what all of a matrix have in common."""
    path = written(scheme, tmp_path)
    options = Options(tp=2, device="cpu", memory="2GiB", packed_cache="none")
    with open_model(str(path), options, catalog) as opened:
        assert opened.plan.ranks is not None and not opened.plan.ranks.whole
        reads, inner = Reads(), opened.checkpoint
        source = SimpleNamespace(
            config=inner.config,
            tensors=inner.tensors,
            text=inner.text,
            read=lambda name: reads.give(inner.read(name)),
            close=inner.close,
        )
        others: Any = SimpleNamespace(all_reduce=lambda x: x, all_gather=lambda x, widths: x)
        with reads:
            load_model(evolve(opened, rank=rank, communicator=others, checkpoint=cast(Any, source)))
        stored = sum(i.nbytes for n, i in inner.tensors.items() if "embed_tokens" not in n)
    assert 0.4 * stored < reads.total <= 1.05 * stored / 2, "the embedding is mapped"
