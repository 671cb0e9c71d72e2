"""Memory of pixels and frames that are sent to other machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hearing_model import write_hearing_model
from tests.seeing_model import write_seeing_model

from inferno.plan import Options, Plan, resolve

pytest.importorskip("inferno_qwen2", reason="needs inferno-qwen2")
pytest.importorskip("transformers")


def planned(path: Path, **more: Any) -> Plan:
    given = {"device": "cpu", "max_model_len": 256, "tp": 2, "rank_host": "10.0.0.1", **more}
    return resolve(str(path), Options(**given))


def bytes_by_name(plan: Plan) -> dict[str, int]:
    return {item.name: item.nbytes for item in plan.memory}


@pytest.mark.parametrize(
    ("write", "name"),
    [(write_seeing_model, "sent pixels"), (write_hearing_model, "sent audio")],
)
@pytest.mark.parametrize("batched", [64, 1024])
def test_what_is_sent_to_other_machines_is_counted(
    write: Callable[[Path], Any], name: str, batched: int, tmp_path: Path
) -> None:
    """A step may begin many small images, or a short piece of audio for each prompt."""
    write(tmp_path)
    limits = {"max_num_batched_tokens": batched, "max_audio_seconds": 10}
    here, far = planned(tmp_path, **limits), planned(tmp_path, nodes=2, **limits)
    assert name not in bytes_by_name(here)
    counted = bytes_by_name(far)[name]
    if far.images is not None:
        values = 4 * 3 * 2 * 14 * 14  # of the four patches of a token, two frames in RGB
        most = far.images.most_tokens
        assert counted == (max(most, batched) + most) * values * 4
    if far.audio is not None:
        longest, (seconds, tokens) = far.audio.most_seconds, far.audio.chunk
        at_once = max(longest, batched * seconds / tokens)
        assert counted == pytest.approx((at_once + longest) * far.audio.rate * 4, abs=4)
    assert far.fixed_bytes - here.fixed_bytes == counted, "the cache has so much less"
