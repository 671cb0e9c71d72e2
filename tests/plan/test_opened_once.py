"""A process loads the catalog once and opens the checkpoint once, however it is started."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from inferno.testing import alike

COUNT = """
    import sys
    from inferno.catalog import Catalog, discovery
    from inferno.catalog.catalog import Catalog
    import inferno.plan.opened, inferno.plan.resolver

    seen = {"catalog": 0, "checkpoint": 0}

    def counted(name, function):
        def call(*args, **kwargs):
            seen[name] += 1
            return function(*args, **kwargs)
        return call

    discovery._entry_points = counted("catalog", discovery._entry_points)
    Catalog.open = counted("checkpoint", Catalog.open)
"""

IN_PROCESS = """
    from inferno import LLM, SamplingParams

    with LLM("demo", memory="2GiB") as llm:
        llm.generate("import math", SamplingParams(max_tokens=2))
"""

WITH_AN_ENGINE_PROCESS = """
    import asyncio
    from inferno import AsyncLLM, SamplingParams

    async def main():
        async with AsyncLLM("demo", memory="2GiB") as llm:
            await llm.generate("import math", SamplingParams(max_tokens=2))

    asyncio.run(main())
"""

ENGINE_PROCESS = """
    from pathlib import Path
    from types import SimpleNamespace
    from inferno.plan import Options, plan_to_json, resolve
    from inferno.process.worker import Worker

    path = Path(sys.argv[1])
    path.write_text(plan_to_json(resolve("demo", Options(memory="2GiB"))))
    seen.update(catalog=0, checkpoint=0)
    socket = SimpleNamespace(send_multipart=lambda message: None)
    heart = SimpleNamespace(moved=lambda: None)
    worker = Worker(socket, parent=-1, heart=heart)
    worker.run(path)
"""


@alike
@pytest.mark.parametrize("start", [IN_PROCESS, WITH_AN_ENGINE_PROCESS, ENGINE_PROCESS])
def test_catalog_and_checkpoint_are_opened_once(start: str, tmp_path: object) -> None:
    code = "\n".join(textwrap.dedent(part) for part in (COUNT, start, "print(seen)"))
    command = [sys.executable, "-c", code, f"{tmp_path}/plan.json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "{'catalog': 1, 'checkpoint': 1}"
