"""schemathesis over the server's OpenAPI document: no 500, no status, media type or answer that the
document does not have."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
EXAMPLES = int(os.environ.get("INFERNO_EXAMPLES", "10"))
"""Random requests to each operation, beside those at the edges of the schema. The long run has 400:
`INFERNO_EXAMPLES=400 pytest tests/acceptance/test_openapi.py -s`."""


def _schemathesis() -> str:
    if importlib.util.find_spec("schemathesis") is not None:
        return str(Path(sys.executable).parent / "schemathesis")
    program = Path(
        os.environ.get("INFERNO_CLIENTS", "/nonexistent"), "schemathesis/bin/schemathesis"
    )
    if not program.exists():
        pytest.skip("schemathesis is not here: tools/clients.py, then set INFERNO_CLIENTS")
    return str(program)


def test_the_server_answers_as_its_document_says(server_url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(_schemathesis(), "run", f"{server_url}/schema/openapi.json"),
            *("--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing"),
            *("--max-examples", str(EXAMPLES), "--generation-deterministic"),
            *("--continue-on-failure", "--request-timeout", "60", "--no-color"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "schemathesis_hooks",
            "PYTHONPATH": str(Path(__file__).parent / "clients"),
        },
    )
    print(done.stdout[-6000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    tested = re.search(r"(\d+) generated", done.stdout)
    assert tested is not None and int(tested[1]) > 200
