"""An engine that tells what it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inferno import LLM, SamplingParams

PROMPT = list(range(70))


def told(path: Path, **options: Any) -> list[list[Any]]:
    """Answer the prompt twice, and return the events."""
    given: dict[str, Any] = {"device": "cpu", "threads": 1, "memory": "1GiB", "max_model_len": 160}
    with LLM("demo", kv_events=path.as_uri(), block_size=16, **(given | options)) as llm:
        for _ in range(2):
            llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    batches = [json.loads(line) for line in path.read_text().splitlines()]
    assert [number for number, *_ in batches] == list(range(len(batches)))
    return [event for _, _, events, _ in batches for event in events]


def test_a_prompts_blocks_are_told_once(tmp_path: Path) -> None:
    cleared, stored = told(tmp_path / "events")
    assert cleared == ["AllBlocksCleared"]
    name, hashes, parent, tokens, block_size, _, medium, *_ = stored
    assert (name, parent, medium, block_size) == ("BlockStored", None, "GPU", 16)
    assert tokens == PROMPT[:64] and len(set(hashes)) == 4


def test_blocks_of_a_folder_are_told_again_with_their_tokens(tmp_path: Path) -> None:
    store = {"kv_store": str(tmp_path / "kv")}
    # Of memory: an engine that ends does not tell what it writes to the disk last.
    first = [event for event in told(tmp_path / "first", **store) if event[6:7] == ["GPU"]]
    second = [event for event in told(tmp_path / "second", **store) if event[6:7] == ["DISK"]]
    hashes = {hash for event in first for hash in event[1]}
    *unnamed, named = second
    for event in unnamed:  # none where the blocks are there before the first batch is told
        assert (set(event[1]), event[2:4]) == (hashes, [None, []])
    assert (set(named[1]), named[2:4]) == (hashes, [None, PROMPT[:64]])
