"""Embeddings of sentence-transformers' modules beside their definitions, by every API.

Suffixes: L tokens of a prompt, D hidden size, O outputs of a layer.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file
from tests.server.test_pooling_models import hidden
from tests.tiny_served import opened_llm, serving, write
from torch import Tensor, nn

from inferno import LLM
from inferno.cli.render import explained
from inferno.errors import RequestError
from inferno.plan import Options, open_model
from inferno_convert.convert import convert

TEXTS = ["a short one", "b", "of more tokens than a step computes: " + "so it comes in chunks " * 8]
OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 600}


def pooled(mode: str, x_LD: Tensor) -> Tensor:
    """The definitions of sentence-transformers 6.2."""
    x_LD = x_LD.double()
    weights_L1 = torch.arange(1, len(x_LD) + 1, dtype=x_LD.dtype)[:, None]
    vectors: dict[str, Tensor] = {
        "mean": x_LD.mean(0),
        "mean_sqrt_len_tokens": x_LD.sum(0) / len(x_LD) ** 0.5,
        "weightedmean": (x_LD * weights_L1).sum(0) / weights_L1.sum(),
        "max": x_LD.amax(0),
        "cls": x_LD[0],
        "lasttoken": x_LD[-1],
    }
    return vectors[mode]


def by_every_api(folder: Path, **options: Any) -> dict[str, list[list[float]]]:
    async def concurrently() -> list[list[float]]:
        async with opened_llm(folder) as llm:
            return await llm.embed(TEXTS, **options)

    with LLM(str(folder), max_num_seqs=4, max_num_batched_tokens=64, **OPTIONS) as llm:
        vectors = {"LLM": llm.embed(TEXTS, **options)}
    vectors["AsyncLLM"] = asyncio.run(concurrently())
    with serving(folder) as http:
        answer = http.post("/v1/embeddings", json={"input": TEXTS, **options}).json()
    vectors["http"] = [entry["embedding"] for entry in answer["data"]]
    return vectors


@pytest.mark.parametrize("mode", ["mean_sqrt_len_tokens", "weightedmean", "max", "cls"])
def test_every_pooling_is_its_definition(tmp_path: Path, mode: str) -> None:
    model = write(tmp_path, ("Transformer", {}), ("Pooling", {"pooling_mode": mode}))
    for api, vectors in by_every_api(tmp_path).items():
        for text, vector in zip(TEXTS, vectors, strict=True):
            expected_D = pooled(mode, hidden(model, text)).tolist()
            assert vector == pytest.approx(expected_D, rel=1e-4, abs=1e-5), api


JOINED = [
    # As sentence-transformers 6 writes them, and the switches of older releases, in its order.
    ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls"), "mean+first"),
    (
        {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}
        | {"pooling_mode_max_tokens": False, "pooling_mode_cls_token": True},
        ("cls", "mean", "lasttoken"),
        "first+mean+last",
    ),
    (
        {"pooling_mode_weightedmean_tokens": True, "pooling_mode_mean_sqrt_len_tokens": True}
        | {"pooling_mode_max_tokens": True},
        ("max", "mean_sqrt_len_tokens", "weightedmean"),
        "max+mean_sqrt_len+weighted_mean",
    ),
]


@pytest.mark.parametrize(("settings", "modes", "name"), JOINED)
def test_several_poolings_are_joined(
    tmp_path: Path, settings: dict[str, Any], modes: tuple[str, ...], name: str
) -> None:
    pooling = ("Pooling", settings)
    model = write(tmp_path, ("Transformer", {}), pooling, ("Normalize", {}), is_matryoshka=True)
    for cut in (None, 40):
        options = {} if cut is None else {"dimensions": cut}
        for api, vectors in by_every_api(tmp_path, **options).items():
            for text, vector in zip(TEXTS, vectors, strict=True):
                x_LD = hidden(model, text)
                expected = torch.cat([pooled(mode, x_LD) for mode in modes])[:cut]
                expected = expected / expected.norm()
                assert vector == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5), api
    size = 32 * len(modes)
    with serving(tmp_path) as http:
        [card] = http.get("/v1/models").json()["data"]
        card = http.get(f"/v1/models/{card['id']}").json()
        own = http.post("/v1/embeddings", json={"input": "x"}).json()
        over = http.post("/v1/embeddings", json={"input": "x", "dimensions": size + 1})
        named = http.post("/v1/embeddings", json={"input": "x", "pooling": "max", "dimensions": 33})
    assert own["x_inferno"] == {"pooling": name, "normalized": True}
    assert (card["x_inferno"]["embeddings"]["pooling"]) == name
    assert (card["x_inferno"]["embeddings"]["size"]) == size
    assert over.status_code == 400 and f"1 to {size}" in over.json()["error"]["message"]
    assert named.status_code == 400 and "1 to 32" in named.json()["error"]["message"]
    with open_model(str(tmp_path), Options(memory="1GiB", device="cpu")) as opened:
        text = explained(opened.plan, opened.text())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    at = lines.index(f"embeddings {name}, {size} numbers")
    assert lines[at + 1 : at + 3] == ["normalized", f"may be cut to any size up to {size}"]


def test_layers_behind_several_poolings_take_those_alone(tmp_path: Path) -> None:
    settings = {"pooling_mode": ["cls", "mean"]}
    model = write(tmp_path, ("Transformer", {}), ("Pooling", settings), ("Dense", {}))
    layer = dense(tmp_path / "2_Dense", 2, "Tanh", in_features=64, out_features=12)
    for api, vectors in by_every_api(tmp_path).items():
        for text, vector in zip(TEXTS, vectors, strict=True):
            x_LD = hidden(model, text)
            expected_O = layer(torch.cat([pooled(mode, x_LD) for mode in ("cls", "mean")]))
            assert vector == pytest.approx(expected_O.tolist(), rel=1e-4, abs=1e-5), api
    with (
        LLM(str(tmp_path), **OPTIONS) as llm,
        pytest.raises(RequestError, match=r"joined vectors of first\+mean") as caught,
    ):
        llm.embed(TEXTS, pooling="mean")
    assert caught.value.remedy == "Leave pooling out."


def test_a_pooling_that_is_not_known_is_refused_beside_another(tmp_path: Path) -> None:
    settings = {"pooling_mode_cls_token": True, "pooling_mode_median_tokens": True}
    write(tmp_path, ("Transformer", {}), ("Pooling", settings))
    with LLM(str(tmp_path), **OPTIONS) as llm:
        with pytest.raises(RequestError, match="its pooling is cls and median_tokens"):
            llm.embed(TEXTS)
        assert len(llm.embed(TEXTS, pooling="mean")[0]) == 32


def dense(folder: Path, seed: int, activation: str, **settings: Any) -> nn.Module:
    """Write random weights into a module's folder."""
    torch.manual_seed(seed)
    inputs, outputs = settings["in_features"], settings["out_features"]
    layer = nn.Linear(inputs, outputs, bias=settings.get("bias", True))
    dtype = torch.bfloat16 if seed % 2 else torch.float32
    layer = layer.to(dtype).float()
    tensors = {f"linear.{key}": value.to(dtype) for key, value in layer.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    name = f"torch.nn.modules.activation.{activation}"
    (folder / "config.json").write_text(json.dumps({**settings, "activation_function": name}))
    return nn.Sequential(layer, getattr(nn, activation)()).double()


ACTIVATIONS = ["Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU"]


@pytest.mark.parametrize(
    "activation",
    [
        n if n in ("Identity", "Tanh") else pytest.param(n, marks=pytest.mark.slow)
        for n in ACTIVATIONS
    ],
)
def test_dense_layers_follow_the_pooling(tmp_path: Path, activation: str) -> None:
    model, layers = write_dense(tmp_path, activation)
    for api, vectors in by_every_api(tmp_path).items():
        for text, vector in zip(TEXTS, vectors, strict=True):
            expected_O = layers(pooled("mean", hidden(model, text)))
            expected_O = expected_O / expected_O.norm()
            assert vector == pytest.approx(expected_O.tolist(), rel=1e-4, abs=1e-5), api


def write_dense(folder: Path, activation: str) -> tuple[Any, nn.Module]:
    kinds = ["Transformer", "Pooling", "Dense", "Dropout", "Dense", "Normalize"]
    settings = [{"pooling_mode": "mean"} if kind == "Pooling" else {} for kind in kinds]
    model = write(folder, *zip(kinds, settings, strict=True), is_matryoshka=True)
    wide = dense(folder / "2_Dense", 1, activation, in_features=32, out_features=48)
    narrow = dense(folder / "4_Dense", 2, "Identity", in_features=48, out_features=12, bias=False)
    return model, nn.Sequential(wide, narrow)


def test_every_api_takes_the_same_options(tmp_path: Path) -> None:
    model, layers = write_dense(tmp_path, "Tanh")
    options = {"pooling": "last", "normalize": False, "dimensions": 8}
    for api, vectors in by_every_api(tmp_path, **options).items():
        for text, vector in zip(TEXTS, vectors, strict=True):
            expected_O = layers(pooled("lasttoken", hidden(model, text)))[:8]
            expected_O = expected_O / expected_O.norm()
            assert vector == pytest.approx(expected_O.tolist(), rel=1e-4, abs=1e-5), api


def test_python_refuses_what_the_server_refuses(tmp_path: Path) -> None:
    write(tmp_path, ("Transformer", {}), ("Pooling", {"pooling_mode": "mean"}), ("LayerNorm", {}))

    async def concurrently(**options: Any) -> Any:
        async with opened_llm(tmp_path) as llm:
            return await llm.embed(TEXTS, **options)

    with LLM(str(tmp_path), **OPTIONS) as llm:
        for embed in (llm.embed, lambda texts, **more: asyncio.run(concurrently(**more))):
            with pytest.raises(RequestError, match="LayerNorm"):
                embed(TEXTS)
            with pytest.raises(RequestError, match="invalid pooling 'median'"):
                embed(TEXTS, pooling=cast(Any, "median"))
            with pytest.raises(RequestError, match="dimensions is not supported"):
                embed(TEXTS, pooling="mean", dimensions=4)
            assert len(embed(TEXTS, pooling="mean")) == len(TEXTS)


@pytest.mark.parametrize(
    "pooling",
    [
        "weighted_mean",
        "max",
        *(pytest.param(p, marks=pytest.mark.slow) for p in ("mean", "mean_sqrt_len", "first")),
    ],
)
def test_chunks_of_a_prompt_do_not_show_in_its_vector(tmp_path: Path, pooling: Any) -> None:
    write(tmp_path)
    runs = []
    for chunk in (1024, 64, 20):
        limits: dict[str, Any] = {"max_num_batched_tokens": chunk, "max_num_seqs": 2}
        with LLM(str(tmp_path), **limits, **OPTIONS) as llm:
            runs.append(llm.embed(TEXTS, pooling=pooling, normalize=False))
    assert runs[0] == runs[1] == runs[2]


def test_a_converted_model_keeps_its_modules(tmp_path: Path) -> None:
    write_dense(tmp_path / "own", "Tanh")
    convert(str(tmp_path / "own"), "safetensors", tmp_path / "made")
    with LLM(str(tmp_path / "own"), **OPTIONS) as llm:
        expected = llm.embed(TEXTS)
    with LLM(str(tmp_path / "made"), **OPTIONS) as llm:
        assert llm.embed(TEXTS) == expected
