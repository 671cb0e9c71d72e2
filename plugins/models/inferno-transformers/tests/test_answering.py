"""The subprocess that a process without torch asks about a model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferno.testing import run_python

TINY: dict[str, Any] = {
    "architectures": ["Olmo2ForCausalLM"],
    "model_type": "olmo2",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}

CODE = """
import json, os, signal, sys
from inferno.errors import PluginError
from inferno_transformers import config

tiny = json.loads(sys.argv[1])
answering = config._answering()

def layers(count):
    read = config.HostedConfig.from_json({**tiny, "num_hidden_layers": count})
    return len(read.cache_specs()), answering._process.pid

(one, first), (two, second) = layers(1), layers(2)
assert (one, two) == (1, 2) and first == second, "asked again, the process is the same"
os.kill(first, signal.SIGKILL)
answering._process.wait()
three, third = layers(3)
assert three == 3 and third != first, "another one is started"
try:
    config.ask("inspection:missing", "{}")
except PluginError as error:
    assert "has no attribute 'missing'" in str(error), error
    assert "Traceback" in error.detail
else:
    raise AssertionError("a question that ends it is an error")
print("torch" in sys.modules)
"""


@pytest.mark.slow
def test_one_process_answers_and_another_takes_its_place() -> None:
    done = run_python(CODE, json.dumps(TINY))
    assert done.stdout == "False\n", done.stderr
