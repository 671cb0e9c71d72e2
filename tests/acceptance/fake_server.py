"""Servers whose models follow a script: `python -m tests.acceptance.fake_server FOLDER...`.

Each checkpoint gets a process, forked once everything is imported, which prints NAME URL. All but
the engine is real: the checkpoint's tokenizer, template and parser, the app, uvicorn. They end when
standard input does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, cast

from tests.acceptance.formats import FORMATS
from tests.acceptance.script import Script
from tests.fake_engine import FakeClient, FakeEngine

from inferno.llm import AsyncLLM
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Options, open_model
from inferno.server import ServerOptions, run_server

NAMES = ("fake", "gpt-4o-mini", "text-embedding-3-small")


def serve(folder: Path) -> None:
    with open_model(str(folder), Options(max_model_len=32768, memory="1GiB")) as opened:
        text = Preprocessor.open(opened)
        plan = opened.plan
    client = FakeClient(FakeEngine(Script(text, FORMATS[folder.name].call_id)))
    client.plan = plan
    run_server(
        AsyncLLM.of(cast(Any, client), text),
        port=0,
        ready=lambda url, _: print(folder.name, url, flush=True),
        app_options=ServerOptions(served_names=NAMES),
    )


def main() -> None:
    end, write_end = os.pipe()  # this process holds the other end: it closes when this one ends
    for name in sys.argv[1:]:
        if os.fork() == 0:
            os.close(write_end)
            threading.Thread(target=_end_with_parent, args=(end,), daemon=True).start()
            serve(Path(name))
            os._exit(0)
    sys.stdin.read()


def _end_with_parent(end: int) -> None:
    os.read(end, 1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
