"""What the plan makes of multi-token-prediction layers: their tensors and cache, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import evolve, frozen

from inferno.catalog import load_catalog
from inferno.contracts import Architecture, AttentionSpec, Checkpoint, Proposer, TensorInfo
from inferno.errors import UnsupportedError
from inferno.plan.speculation import MTPUse, mtp_use
from inferno.plan.stored import unused_tensors

SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)
PROPOSERS = {o.item.name: o.item for o in load_catalog().of("inferno_proposers")}
LAYER = TensorInfo("bfloat16", (8, 8), 128)


@frozen
class Config:
    """Of a model with one layer, and as many that predict further tokens."""

    specs: tuple[AttentionSpec, ...] = (SPEC,)
    vocab_size: int = 32
    max_position_embeddings: int = 64
    mtp_tensors: tuple[str, ...] = ("model.layers.1.*",)
    unused_tensors: tuple[str, ...] = ("*.rotary.inv_freq",)

    def cache_specs(self) -> Sequence[AttentionSpec]:
        return (SPEC,)

    def mtp_specs(self) -> Sequence[AttentionSpec]:
        return self.specs


@frozen
class Plain:
    """Of a model that reads everything."""

    vocab_size: int = 32
    max_position_embeddings: int = 64

    def cache_specs(self) -> Sequence[AttentionSpec]:
        return (SPEC,)


def stored(*names: str) -> Checkpoint:
    return cast(Checkpoint, SimpleNamespace(tensors=dict.fromkeys(names, LAYER)))


def architecture(**changes: Any) -> Architecture:
    given = Architecture(name="Toy", config="toy:config", build="toy:build", mtp="toy:mtp")
    return evolve(given, **changes)


def use(
    proposer: Proposer = PROPOSERS["mtp"],
    of: Architecture | None = None,
    config: Config | None = None,
    checkpoint: Checkpoint | None = None,
) -> MTPUse:
    whole = stored("model.layers.0.q", "model.layers.1.q", "model.layers.1.rotary.inv_freq")
    return mtp_use(proposer, of or architecture(), config or Config(), checkpoint or whole)


def test_their_tensors_are_read_and_their_cache_is_planned() -> None:
    assert use() == MTPUse(tensors={"model.layers.1.q": LAYER}, specs=(SPEC,))


def test_without_a_proposer_that_needs_them_they_are_not() -> None:
    assert use(PROPOSERS["ngram"]) == MTPUse(tensors={}, specs=())


@pytest.mark.parametrize(
    "given", [{"of": architecture(mtp=None)}, {"config": Config(specs=())}], ids=["class", "config"]
)
def test_a_model_without_such_layers_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="this model has no multi-token") as caught:
        use(**given)
    assert "--speculative ngram" in caught.value.remedy


def test_a_checkpoint_without_them_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="this checkpoint does not store"):
        use(checkpoint=stored("model.layers.0.q", "model.layers.1.rotary.inv_freq"))


def test_unused_tensors_are_those_of_the_config_and_of_these_layers() -> None:
    assert unused_tensors(Config()) == ("*.rotary.inv_freq", "model.layers.1.*")
    assert unused_tensors(Plain()) == (), "a config may name none"
