"""A config.json that a family cannot read is an error of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inferno.contracts import Architecture, Checkpoint
from inferno.errors import CheckpointError
from inferno.plan.opened import model_config


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"vision_config": None},
        {"vision_config": 3},
        {"vision_config": "a string"},
        {"vision_config": ["a list"]},
        {"vision_config": {"size": 1e400}},
        {"vision_config": {"size": []}},
    ],
)
def test_whatever_stops_a_family_is_said_of_the_file(config: Mapping[str, Any]) -> None:
    def parsed(config: Mapping[str, Any]) -> Any:
        size = config["vision_config"].get("size")
        return int(size) if isinstance(size, float) else size[0]

    toy = Architecture(name="Toy", config=parsed, build=parsed)
    checkpoint = cast(Checkpoint, SimpleNamespace(config=config))
    with pytest.raises(CheckpointError, match=r"Toy cannot read config\.json"):
        model_config(toy, checkpoint)
