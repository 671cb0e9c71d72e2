"""The `llm` command line, with the model in its extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from words import ANSWER, ASK_PERSON, ASK_TOOLS, HELLO, MODEL, URL, equal, run_flows

CONFIG = f"""
- model_id: local
  model_name: {MODEL}
  api_base: {URL}/v1
  supports_tools: true
  supports_schema: true
"""
FUNCTIONS = """
def get_weather(city: str) -> str:
    "The weather in a city."
    return "21 degrees"

def add(a: int, b: int) -> str:
    "The sum of two numbers."
    return "the sum is 42"
"""
folder = Path(tempfile.mkdtemp(prefix="llm-"))


def _llm(*arguments: str) -> str:
    (folder / "extra-openai-models.yaml").write_text(CONFIG, encoding="utf-8")
    program = Path(sys.executable).parent / "llm"
    done = subprocess.run(
        [str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "none"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def flow_models() -> None:
    assert "local" in _llm("models", "list")


def flow_chat() -> None:
    equal(_llm("-m", "local", "--no-stream", "Hi"), HELLO)


def flow_stream() -> None:
    equal(_llm("-m", "local", "Hi", "--usage").splitlines()[0], HELLO)


def flow_system() -> None:
    equal(_llm("-m", "local", "-s", "Answer in one word: yes", "Is it?"), "yes")


def flow_continue() -> None:
    _llm("-m", "local", "Hi")
    equal(_llm("-c", "Say exactly: again"), "again")


def flow_tools() -> None:
    equal(_llm("-m", "local", "--functions", FUNCTIONS, ASK_TOOLS), ANSWER)


def flow_structured() -> None:
    person = json.loads(_llm("-m", "local", "--schema", "name, age int", ASK_PERSON))
    equal(person, {"name": "Ada Lovelace", "age": 36})


if __name__ == "__main__":
    try:
        run_flows(globals())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
