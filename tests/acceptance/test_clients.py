"""Unmodified clients against server processes, each in its ordinary flows.

`clients/` has a script for each client. It runs in this interpreter if the client is importable
here, else in its own environment under the folder that `INFERNO_CLIENTS` names (`tools/clients.py`
makes them), else its tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from attrs import frozen
from tests.acceptance.formats import FORMATS

if importlib.util.find_spec("inferno_chat_formats") is None:
    pytest.skip("the chat formats (inferno-chat-formats) are not here", allow_module_level=True)

CLIENTS = Path(__file__).parent / "clients"


@frozen
class Client:
    """A script, and what it needs."""

    script: str
    package: str
    """The package it imports, and the name of its environment with - for _."""
    formats: tuple[str, ...] = ("hermes",)
    """Those in which its flows with tools and thinking run; the others run in the first."""

    def start(
        self, flows: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run some of its flows. Skips the test if the client is not here."""
        folder = Path(os.environ.get("INFERNO_CLIENTS", "/nonexistent"))
        if self.script.endswith(".mjs"):
            return self._start_node(folder / "node", flows, environment)
        python = Path(sys.executable)
        if importlib.util.find_spec(self.package) is None:
            python = folder / self.package.replace("_", "-") / "bin" / "python"
        if not python.exists():
            pytest.skip(f"{self.package} is not here: tools/clients.py, then set INFERNO_CLIENTS")
        command = [str(python), str(CLIENTS / self.script), *flows]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    def _start_node(
        self, folder: Path, flows: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        node = shutil.which("node")
        if node is None or not (folder / "node_modules" / self.package).is_dir():
            pytest.skip(f"node and its {self.package} are not here: tools/clients.py")
        return subprocess.run(
            [node, "--input-type=module", "-", *flows],
            input=(CLIENTS / self.script).read_text(encoding="utf-8"),
            capture_output=True,
            text=True,
            cwd=folder,  # whose node_modules a script from standard input imports
            env=environment,
        )

    def flows(self) -> list[str]:
        text = (CLIENTS / self.script).read_text(encoding="utf-8")
        if self.script.endswith(".mjs"):
            return re.findall(r"^  async (\w+)\(", text, re.MULTILINE)
        return re.findall(r"^(?:async )?def flow_(\w+)", text, re.MULTILINE)


ALL = (
    Client("openai_python.py", "openai", tuple(sorted(FORMATS, key="hermes".__ne__))),
    Client("anthropic_python.py", "anthropic", ("hermes", "thinks", "mistral", "harmony")),
    Client("ollama_python.py", "ollama"),
    Client("openai_node.mjs", "openai"),
    Client("langchain_python.py", "langchain_openai"),
    Client("litellm_python.py", "litellm"),
    Client("pydantic_ai_python.py", "pydantic_ai"),
    Client("instructor_python.py", "instructor"),
    Client("llm_cli.py", "llm"),
    Client("lm_eval_cli.py", "lm_eval"),
)


def _cases() -> list[tuple[Client, str, str]]:
    """Every flow, for each format that can do it. Flows that no format changes run on one."""
    cases = []
    for client in ALL:
        for flow in client.flows():
            varies = re.search("tools|thinking", flow)
            for name in client.formats if varies else client.formats[:1]:
                each = FORMATS[name]
                if (
                    (each.thinks or "thinking" not in flow)
                    and (each.parallel or "parallel" not in flow)
                    and (each.forces or not re.search("required|forced", flow))
                ):
                    cases.append((client, name, flow))
    return cases


CASES = _cases()
Run = Callable[[Client, str], dict[str, str | None]]


@pytest.fixture(scope="module")
def run(server_urls: dict[str, str], fake_checkpoints: dict[str, Path]) -> Run:
    """Runs all of a client's flows against the server of a format, once: flow -> traceback."""
    done: dict[tuple[Client, str], dict[str, str | None]] = {}

    def run(client: Client, name: str) -> dict[str, str | None]:
        if (client, name) not in done:
            wanted = [flow for each, where, flow in CASES if (each, where) == (client, name)]
            environment = {
                **os.environ,
                "INFERNO_URL": server_urls[name],
                "INFERNO_TOKENIZER": str(fake_checkpoints[name]),
            }
            process = client.start(wanted, environment)
            lines = [line for line in process.stdout.splitlines() if line.startswith('{"flow"')]
            errors = {each["flow"]: each["error"] for each in map(json.loads, lines)}
            done[client, name] = {flow: errors.get(flow, process.stderr) for flow in wanted}
        return done[client, name]

    return run


@pytest.mark.parametrize(
    ("client", "name", "flow"),
    [
        pytest.param(
            *case,
            id="-".join((case[0].script.partition(".")[0], *case[1:])),
            # Each other format is a process of a server and one of a client.
            marks=[] if case[1] == case[0].formats[0] else pytest.mark.slow,
        )
        for case in CASES
    ],
)
def test_a_clients_flow_works(run: Run, client: Client, name: str, flow: str) -> None:
    error = run(client, name)[flow]
    assert error is None, error
