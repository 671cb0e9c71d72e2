"""`LLM.close` gives the memory of weights and cache back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.tiny_served import write

from inferno.testing.tiny import run_python

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

CODE = """
import gc, json, sys
from inferno import LLM, SamplingParams
from inferno.errors import InfernoError

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

gc.disable()  # a collection that happens to come would hide what holds the memory
llm = LLM(sys.argv[1], device="cpu", dtype="float32", max_model_len=1000, max_num_seqs=4,
          memory="900MiB", packed_cache="none", threads=1)
prompt = [3 + i % 200 for i in range(450)]
params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
llm.generate([[i, *prompt] for i in range(4)], params)
weights, cached = llm._engine.plan.memory[0].nbytes, 1800 * llm._engine.plan.kv_bytes_per_token
before = resident()
llm.close()
llm.close()
try:
    llm.generate([prompt], params)
except InfernoError as error:
    print(json.dumps([before - resident(), weights, cached, error.cause]))
"""


@pytest.mark.slow
def test_closing_gives_the_memory_of_weights_and_cache_back(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 3}
    write(tmp_path, **sizes, num_key_value_heads=4, head_dim=64)
    done = run_python(CODE, str(tmp_path))
    given, weights, cached, cause = json.loads(done.stdout.splitlines()[-1])
    assert weights > 80e6 and cached > 10e6
    assert given > 0.8 * (weights + cached), done.stderr
    assert "closed" in cause
