"""`inferno run-batch` with the demo model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Inferno

if importlib.util.find_spec("inferno_demo") is None:
    pytest.skip("the demo model's package is not installed", allow_module_level=True)


@pytest.mark.slow
def test_a_file_is_answered_and_continued(inferno: Inferno, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    url = "/v1/chat/completions"
    lines: list[Any] = [
        {"custom_id": str(i), "method": "POST", "url": url, "body": body} for i in range(3)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("run-batch", "-i", "in.jsonl", "-o", "out.jsonl", "--model", "demo")
    done = inferno(*command, "--device", "cpu", "--max-num-seqs", "2")
    assert done.returncode == 0, done.stderr
    assert "3 answered, 0 failed, 0 skipped" in done.stderr
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(each["custom_id"] for each in answers) == ["0", "1", "2"]
    assert {each["response"]["body"]["usage"]["completion_tokens"] for each in answers} <= {
        1,
        2,
        3,
        4,
    }
    lines.append({"custom_id": "bad", "method": "POST", "url": "/v1/nothing", "body": body})
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    failed = inferno(*command, "--device", "cpu")
    assert failed.returncode == 1 and "0 answered, 1 failed, 3 skipped" in failed.stderr
    assert inferno(*command).returncode == 0  # nothing is left to do
