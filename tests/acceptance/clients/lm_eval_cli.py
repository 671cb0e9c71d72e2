"""lm-evaluation-harness: a task that scores prompts (loglikelihood) and one that generates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from words import MODEL, URL, equal, run_flows

TOKENIZER = os.environ.get("INFERNO_TOKENIZER", "")
"""The folder of the served checkpoint: the harness counts tokens itself."""
CHOOSES = """
task: chooses
dataset_path: json
dataset_kwargs:
  data_files: {folder}/choices.jsonl
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
metric_list:
  - metric: acc
"""
WRITES = """
task: writes
dataset_path: json
dataset_kwargs:
  data_files: {folder}/words.jsonl
test_split: train
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["\\n\\n\\n"]
  max_gen_toks: 64
  temperature: 0.0
metric_list:
  - metric: exact_match
"""


def _evaluate(model: str, task: str, *, chat: bool = False, **options: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [
            {"question": f"Is {i} even?", "choices": ["yes", "no"], "answer": i % 2}
            for i in range(4)
        ]
        (folder / "choices.jsonl").write_text("\n".join(map(json.dumps, rows)))
        rows = [{"question": f"Say exactly: word{i}", "answer": f"word{i}"} for i in range(4)]
        (folder / "words.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (folder / "chooses.yaml").write_text(CHOOSES.format(folder=folder))
        (folder / "writes.yaml").write_text(WRITES.format(folder=folder))
        arguments = {"model": MODEL, "num_concurrent": "2", "max_retries": "1", **options}
        done = subprocess.run(
            [
                *(str(Path(sys.executable).parent / "lm_eval"), "--model", model),
                *("--tasks", task, "--include_path", name),
                *("--model_args", ",".join(f"{k}={v}" for k, v in arguments.items())),
                *("--output_path", str(folder / "out")),
                *(["--apply_chat_template"] if chat else []),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1", "HF_HOME": name},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        [report] = (folder / "out").rglob("results_*.json")
        scores: dict[str, float] = json.loads(report.read_text())["results"][task]
        return scores


def flow_loglikelihood() -> None:
    scores = _evaluate(
        "local-completions",
        "chooses",
        base_url=f"{URL}/v1/completions",
        tokenizer=TOKENIZER,
        tokenizer_backend="huggingface",
    )
    assert 0 <= scores["acc,none"] <= 1


def flow_generate() -> None:
    scores = _evaluate(
        "local-chat-completions",
        "writes",
        chat=True,
        base_url=f"{URL}/v1/chat/completions",
        tokenizer_backend="None",
    )
    equal(scores["exact_match,none"], 1.0)


if __name__ == "__main__":
    run_flows(globals())
