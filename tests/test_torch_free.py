"""What starts fast or only decides imports no torch: torch takes seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from inferno.testing.tiny import run_python


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("headers")
    save_file(
        {"model.embed_tokens.weight": torch.zeros(8, 4), "model.norm.weight": torch.zeros(4)},
        folder / "model.safetensors",
    )
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 8,
        "hidden_size": 4,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "code",
    [
        "import inferno; inferno.__version__, inferno.hookimpl, inferno.SamplingParams",
        "import inferno.contracts, inferno.hookspecs, inferno.core.types, inferno.errors, "
        "inferno.request.requests, inferno.configs",
        "import inferno.catalog; inferno.catalog.load_catalog()",
        "import inferno.process.client, inferno.core.schedule.scheduler, inferno.core.kvcache",
        "from inferno.process.client import EngineClient",
        "from inferno.plan import *; plan_from_json(plan_to_json(resolve(sys.argv[1], "
        "Options(device='cpu'))))",
    ],
)
def test_imports_no_torch(code: str, checkpoint: Path) -> None:
    heavy = "{'torch', 'transformers', 'litestar'} & set(sys.modules)"
    done = run_python(
        f"import sys\n{code}\nsys.exit(str(sorted({heavy})) if {heavy} else 0)", str(checkpoint)
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_engine_process_has_no_tokenizer() -> None:
    """Only grammars need one there; the library takes 3 MB."""
    code = """
import sys
from inferno.process.__main__ import import_engine, import_python
import_python()
import_engine()
import inferno.process.worker
sys.exit("tokenizers" in sys.modules)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
