"""`inferno chat`: its commands, a server's model, and what a terminal shows."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.conftest import Live, handlers_are_read_once, wait_until
from tests.server.server_fakes import RESPONSE_TEMPLATE, FakeLLM

from inferno.cli import cli
from inferno.cli.screen import complete, printable
from inferno.request.sampling_params import SamplingParams

__all__ = ["handlers_are_read_once"]

# A terminal's own words: colours, cursor movements, titles.
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


@pytest.fixture
def live() -> Iterator[Callable[..., Live]]:
    with contextlib.ExitStack() as stack:

        def start(llm: FakeLLM | None = None, **options: Any) -> Live:
            server = Live(llm or FakeLLM(), **{"only": ("inferno",), **options})
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def chat(server: Live, *lines: str, code: int = 0, args: tuple[str, ...] = ()) -> Result:
    """Pipe messages and commands into a chat with the server."""
    command = ["chat", "--url", server.url, *args]
    result = CliRunner().invoke(cli, command, input="".join(f"{line}\n" for line in lines))
    assert result.exit_code == code, result.output
    return result


# --- a server's model -----------------------------------------------------------------------------


def test_a_server_answers_and_its_counts_are_shown(live: Callable[..., Live]) -> None:
    server = live(FakeLLM(reply="<think>hm</think>Hello.", response_template=RESPONSE_TEMPLATE))
    result = chat(server, "hi", "and?", "/stats", args=("--system", "Be brief."))
    assert result.stdout == "Hello.\nHello.\n"
    assert "2 of 91 prompt tokens cached" in result.stderr
    assert "2 answers, 46 tokens" in result.stderr
    assert server.llm.prompts[-1] == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>hm</think>Hello.<|im_end|>\n"
        "<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_settings_and_thinking_reach_the_server(live: Callable[..., Live]) -> None:
    server = live()
    chat(server, "/set temperature 0.5", "/set stop END", "/think off", "hi", args=("--top-k", "3"))
    params = server.llm.seen[-1][1]
    assert (params.temperature, params.top_k, params.stop) == (0.5, 3, ("END",))
    assert server.llm.prompts[-1].endswith("<think>\n\n</think>\n\n")
    chat(server, "/set temperature 0.5", "/set temperature default", "/think off", "/think default")
    assert not server.llm.prompts[-1].endswith("assistant\n</think>\n\n")


def test_an_answer_that_a_server_cuts_says_so(live: Callable[..., Live]) -> None:
    server = live(FakeLLM(reply="word ", endless=True, fills_context=True, max_model_len=120))
    result = chat(server, "/set max_tokens 5", "hi", "/set max_tokens default", "/undo", "hi")
    limit, context = (line for line in result.stderr.splitlines() if line.startswith("Cut"))
    assert limit.startswith("Cut after 5 tokens, the limit: /set max_tokens 20 raises it")
    assert context.startswith("Cut: The context is full, or the server limits answers. /undo")


def test_a_server_of_inferno_suggests_how_to_sample(live: Callable[..., Live]) -> None:
    usual = SamplingParams(max_tokens=None, temperature=0.8, top_k=40)
    server = live(FakeLLM(interactive_params=usual))
    chat(server, "/set top_k 7", "hi")
    params = server.llm.seen[-1][1]
    assert (params.temperature, params.top_k) == (0.8, 7)


def test_a_full_context_offers_what_helps_and_nothing_is_lost(live: Callable[..., Live]) -> None:
    server = live(FakeLLM(reply="A", max_model_len=200))
    result = chat(server, "one", "x" * 150, "/undo", "/retry", code=1)
    assert "/undo forgets the last message and its answer, /clear" in result.stderr
    assert "--context-overflow drop-oldest" in result.stderr
    result = chat(live(FakeLLM(max_model_len=200)), "x" * 200, code=1)
    assert "Send a shorter one" in result.stderr


def test_the_oldest_turns_are_dropped_and_kept_in_the_conversation(
    live: Callable[..., Live], tmp_path: Path
) -> None:
    server, path = live(FakeLLM(reply="A", max_model_len=1000)), tmp_path / "chat.json"
    messages = [f"message {i}" for i in range(40)]
    args = ("--system", "Be brief.", "--context-overflow", "drop-oldest", "--max-tokens", "50")
    result = chat(server, *messages, f"/save {path}", args=args)
    assert result.stdout == "A\n" * 40
    notes = [line for line in result.stderr.splitlines() if "oldest messages" in line]
    assert 1 < len(notes) < 12, "not at every message"
    assert prompts(server)[-1].startswith("s:Be brief. u:message ")
    assert prompts(server)[-1].endswith("u:message 39") and "message 0 " not in prompts(server)[-1]
    assert len(json.loads(path.read_text())["messages"]) == 81


def test_a_key_is_sent_and_its_lack_explained(
    live: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = live(api_keys=["k"])
    refused = chat(server, "hi", code=1)
    assert "401" in refused.stderr and "--api-key" in refused.stderr
    assert chat(server, "hi", args=("--api-key", "k")).stdout == "Hello there\n"
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert chat(server, "hi").stdout == "Hello there\n"


def test_the_address_may_come_from_openais_variable(
    live: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = live(served_names=["a", "b"])
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    result = CliRunner().invoke(cli, ["chat"], input="/model b\nhi\n/model c\n")
    assert result.stdout == "Hello there\n"
    assert f"using the server at {server.url}/v1" in result.stderr
    assert "b (answers)" in result.stderr
    assert "no model 'c'\nUse one of: a, b" in result.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "cannot be reached"),
        ("ftp://x", "is not a server's address"),
        ("{live}/nowhere", "404"),
    ],
)
def test_an_address_that_is_wrong_says_so(live: Callable[..., Live], url: str, said: str) -> None:
    url = url.replace("{live}", live().url)
    result = CliRunner().invoke(cli, ["chat", "--url", url], input="hi\n")
    assert result.exit_code in (1, 2)
    assert said in result.stderr and len(result.stderr.strip().splitlines()) == 2


def test_a_message_that_fails_in_a_pipe_is_the_exit_status(live: Callable[..., Live]) -> None:
    server = live()
    command = ["chat", "nope", "--url", server.url]
    result = CliRunner().invoke(cli, command, input="hi\n/model fake\nhi\n")
    assert result.exit_code == 1
    assert result.stdout == "Hello there\n" and "404" in result.stderr


def test_options_of_a_local_model_are_refused_with_a_server() -> None:
    result = CliRunner().invoke(cli, ["chat", "--url", "http://x", "--memory", "1GiB"])
    assert result.exit_code == 2
    assert "--memory is for a model in this process" in result.stderr


def test_an_answer_that_breaks_off_stays_as_far_as_it_came(live: Callable[..., Live]) -> None:
    llm = FakeLLM(reply="word ", endless=True, dies_after=4)
    server = live(llm)
    result = chat(server, "go", "/undo", code=1)
    assert "the answer broke off: the engine process ended" in result.stderr
    assert 'Forgot "go"' in result.stderr


# --- commands -------------------------------------------------------------------------------------


def prompts(server: Live) -> list[str]:
    """What was asked, as "role:content" of each message."""
    lines = []
    for prompt in server.llm.prompts[1:]:  # the first one warms the server up
        turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
        lines.append(" ".join(f"{role[0]}:{text}" for role, text in turns))
    return lines


def test_retry_undo_clear_and_a_message_with_a_slash(live: Callable[..., Live]) -> None:
    server = live(FakeLLM(reply="A"))
    chat(server, "one", "two", "/retry", "/undo", "three", "/clear", "//four")
    assert prompts(server) == [
        "u:one",
        "u:one a:A u:two",
        "u:one a:A u:two",
        "u:one a:A u:three",
        "u:/four",
    ]


def test_a_forgotten_message_is_shown_as_it_was_typed(live: Callable[..., Live]) -> None:
    family = "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}"
    result = chat(live(FakeLLM(reply="A")), f"it's {family}", "/undo")
    assert f'Forgot "it\'s {family}" and its answer.' in result.stderr


def test_a_refused_message_is_sent_again_by_retry(live: Callable[..., Live]) -> None:
    server = live(FakeLLM(max_model_len=120))
    result = chat(server, "x" * 200, "ok", "/undo", "/clear", "/retry", "fine", code=1)
    assert "400" in result.stderr
    assert prompts(server)[-1] == "u:fine"
    assert "there is no message yet" in result.stderr, "/clear forgets it too"


def test_a_file_goes_with_the_next_message(live: Callable[..., Live], tmp_path: Path) -> None:
    server = live()
    (tmp_path / "notes.txt").write_text("a ``` b\n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff")
    result = chat(
        server,
        f"/file {tmp_path}/notes.txt",
        "what is this",
        f"/file {tmp_path}/image.png",
        f"/file {tmp_path}/none",
        "bye",
    )
    assert prompts(server)[0] == "u:notes.txt:\n````\na ``` b\n````\n\nwhat is this"
    assert prompts(server)[1].endswith("u:bye")
    assert "is not a text file" in result.stderr and "cannot be read" in result.stderr


def test_a_conversation_is_saved_and_loaded(live: Callable[..., Live], tmp_path: Path) -> None:
    server, path = live(FakeLLM(reply="A")), tmp_path / "chat.json"
    chat(server, "/system Be brief.", "/set temperature 0.5", "one", f"/save {path}")
    saved = json.loads(path.read_text())
    assert saved["messages"][0] == {"role": "system", "content": "Be brief."}
    assert saved["sampling"] == {"temperature": 0.5}
    result = chat(server, f"/load {path}", "two", "/system", f"/load {tmp_path}")
    assert prompts(server)[-1] == "s:Be brief. u:one a:A u:two"
    assert server.llm.seen[-1][1].temperature == 0.5
    assert "System prompt: Be brief." in result.stderr and "cannot be read" in result.stderr


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"messages": [1]}', '{"messages": [{"role": 1}]}', "\x00"]
)
def test_a_file_that_is_no_conversation_changes_nothing(
    live: Callable[..., Live], tmp_path: Path, text: str
) -> None:
    server, path = live(FakeLLM(reply="A")), tmp_path / "chat.json"
    path.write_text(text)
    result = chat(server, "one", f"/load {path}", "two")
    assert "is not a saved conversation" in result.stderr
    assert prompts(server)[-1] == "u:one a:A u:two"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/nothing", "there is no command /nothing"),
        ("/set", "temperature = default"),
        ("/set top_p", "top_p = default"),
        ("/set heat 3", "there is no setting 'heat'"),
        ("/set temperature hot", "temperature cannot be 'hot'"),
        ("/set temperature -1", "temperature is -1"),
        ("/set seed 1.5", "seed cannot be"),
        ("/think maybe", "/think cannot be 'maybe'"),
        ("/think show", "No thoughts."),
        ("/retry", "there is no message yet"),
        ("/file", "/file needs a path"),
        ("/help", "/system [TEXT]"),
    ],
)
def test_each_command_says_what_it_did_or_needs(
    live: Callable[..., Live], line: str, said: str
) -> None:
    assert said in chat(live(), line).output


# --- a terminal -----------------------------------------------------------------------------------


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup pytest` would have it ignored


class Pty:
    """`inferno chat ARGS` in a terminal of its own."""

    def __init__(self, *args: str, env: dict[str, str] | None = None) -> None:
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "inferno", "chat", *args],
            stdin=side,
            stdout=side,
            stderr=side,
            env={**os.environ, "TERM": "xterm-256color", **(env or {})},
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(side)
        self.raw = ""
        """All that was printed."""
        self._seen = 0

    @property
    def text(self) -> str:
        """What was printed after what the last `expect` found, without escapes."""
        return ESCAPES.sub("", self.raw)[self._seen :]

    @property
    def settings(self) -> list[Any]:
        """The terminal's modes."""
        return termios.tcgetattr(self._main)

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def expect(self, text: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while text not in self.text:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} did not come: {self.text!r}"
            if select.select([self._main], [], [], left)[0]:
                try:
                    self.raw += os.read(self._main, 65536).decode(errors="replace")
                except OSError:  # the other side has closed
                    assert text in self.text, f"{text!r} did not come: {self.text!r}"
        self._seen += self.text.index(text) + len(text)

    def ended(self) -> int:
        """Wait for the end. Returns the exit code."""
        with contextlib.suppress(OSError):
            while select.select([self._main], [], [], 20)[0]:
                self.raw += os.read(self._main, 65536).decode(errors="replace")
        try:
            return self.process.wait(5)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on: {self.text!r}") from None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._main)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Pty]]:
    with contextlib.ExitStack() as stack:

        def start(*args: str, **env: str) -> Pty:
            return stack.enter_context(contextlib.closing(Pty(*args, env=env)))

        yield start


def test_a_terminal_shows_markdown_and_folds_thoughts(
    live: Callable[..., Live], terminal: Callable[..., Pty]
) -> None:
    reply = (
        "<think>Let me see.</think># Title\n\nSome **bold** text.\n\n```python\nx = 1\n```\nEnd."
    )
    server = live(FakeLLM(reply=reply, response_template=RESPONSE_TEMPLATE, delay=0.01))
    it = terminal("--url", server.url)
    it.expect(">")
    it.type("hi\r")
    it.expect("Thought for")
    it.expect("prompt tokens cached")
    assert "**bold**" not in it.raw.rpartition("Thought for")[2]
    assert "\x1b[1mbold\x1b[0m" in it.raw
    it.expect(">")
    it.type("/think show\r")
    it.expect("Let me see.")
    it.expect(">")
    it.type("\x04")
    assert it.ended() == 0


def test_ctrl_c_stops_the_answer_then_warns_then_exits(
    live: Callable[..., Live], terminal: Callable[..., Pty]
) -> None:
    llm = FakeLLM(reply="word ", endless=True, delay=0.01)
    server = live(llm)
    it = terminal("--url", server.url)
    it.expect(">")
    it.type("go\r")
    it.expect("word word")
    it.type("\x03")
    it.expect("stopped")
    wait_until(lambda: len(llm.aborted) == 1)
    llm.endless = False
    it.expect(">")
    it.type("again\r")
    it.expect("prompt tokens cached")
    assert re.search(r"assistant\n(word )+.*again", llm.prompts[-1], re.DOTALL)
    it.expect(">")
    it.type("\x03")
    it.expect("Press Ctrl-C again to exit.")
    it.expect(">")
    it.type("\x03")
    assert it.ended() == 130


@pytest.mark.slow
def test_what_is_typed_while_the_model_loads_waits_for_the_prompt(
    terminal: Callable[..., Pty],
) -> None:
    it = terminal("demo", "--no-history", "--max-tokens", "4")
    it.expect("runs demo")
    assert not it.settings[0] & termios.ICRNL, "Enter would start a line, as Ctrl-J does"
    assert not it.settings[3] & termios.ECHO, "it would be shown twice"
    it.type("def\r")
    it.expect("tokens/s")
    it.type("\x04")
    assert it.ended() == 0


@pytest.mark.slow
def test_the_terminal_is_as_before_if_no_model_loads(terminal: Callable[..., Pty]) -> None:
    it = terminal("./nope.gguf")
    before = it.settings
    it.expect("no such file")
    assert it.ended() != 0
    assert it.settings == before


def test_a_message_may_have_several_lines(
    live: Callable[..., Live], terminal: Callable[..., Pty]
) -> None:
    server = live(FakeLLM(reply="A"))
    it = terminal("--url", server.url)
    it.expect(">")
    it.type('"""one\r')
    it.expect(".")
    it.type('two"""\r')
    it.expect("cached")
    it.expect(">")
    it.type("three \\\r")
    it.expect(".")
    it.type("four\r")
    it.expect("cached")
    assert prompts(server) == ["u:one\ntwo", "u:one\ntwo a:A u:three \nfour"]


PASTED = "\x1b[200~one\r  two {\r\n}  漢字\x1b[201~"


@pytest.mark.slow
def test_a_paste_is_one_message_and_edited_as_one(
    live: Callable[..., Live], terminal: Callable[..., Pty]
) -> None:
    server = live(FakeLLM(reply="A"))
    it = terminal("--url", server.url)
    it.expect(">")
    it.type(PASTED)
    it.expect("漢字")
    it.type("\x7f語\x1b[A\x05!\r")  # backspace, up, to the line's end
    it.expect("cached")
    it.expect(">")
    it.type("\x1b[A\x1b[A\x1b[A\x01Again: \r")  # from the history, above its first line
    it.expect("cached")
    first = "u:one\n  two {!\n}  漢語"
    assert prompts(server) == [first, f"{first} a:A u:Again: one\n  two {{!\n}}  漢語"]


@pytest.mark.parametrize("key", ["\n", "\x1b\r", pytest.param("\x1b\n", marks=pytest.mark.slow)])
def test_a_key_starts_a_new_line(
    live: Callable[..., Live], terminal: Callable[..., Pty], key: str
) -> None:
    server = live(FakeLLM(reply="A"))
    it = terminal("--url", server.url)
    it.expect(">")
    it.type(f"one{key}two\r")
    it.expect("cached")
    assert prompts(server) == ["u:one\ntwo"]


def test_what_is_typed_and_pasted_during_an_answer_waits_for_the_next_prompt(
    live: Callable[..., Live], terminal: Callable[..., Pty]
) -> None:
    llm = FakeLLM(reply="word ", endless=True, delay=0.01)
    server = live(llm)
    it = terminal("--url", server.url)
    it.expect(">")
    it.type("go\r")
    it.expect("word word")
    llm.endless = False
    it.type(f"later\r{PASTED}\r")
    it.expect("cached")
    shown = it.text
    it.expect("cached")
    it.expect("cached")
    assert "later" not in shown, "it would garble the answer"
    assert [text.rpartition("u:")[2] for text in prompts(server)] == [
        "go",
        "later",
        "one\n  two {\n}  漢字",
    ]


def test_the_terminal_is_left_as_it_was(
    live: Callable[..., Live], terminal: Callable[..., Pty]
) -> None:
    it = terminal("--url", live().url)
    before = it.settings
    it.expect(">")
    assert it.settings != before
    it.type("\x04")
    assert it.ended() == 0
    assert it.settings == before
    assert it.raw.count("\x1b[?2004h") > 0
    assert it.raw.rindex("\x1b[?2004l") > it.raw.rindex("\x1b[?2004h")


@pytest.mark.slow
def test_what_was_typed_comes_back_in_the_next_session(
    live: Callable[..., Live], terminal: Callable[..., Pty], tmp_path: Path
) -> None:
    server = live()
    first = terminal("--url", server.url)
    first.expect(">")
    first.type("remember me\r")
    first.expect("cached")
    first.expect(">")
    first.type("/exi\t\r")
    assert first.ended() == 0
    path = tmp_path / "config" / "inferno" / "chat_history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = terminal("--url", server.url)
    second.expect(">")
    second.type("\x1b[A\x1b[A\r")
    second.expect("cached")
    assert prompts(server) == ["u:remember me"] * 2
    private = terminal("--url", server.url, "--no-history")
    private.expect(">")
    private.type("secret\r")
    private.expect("cached")
    private.expect(">")
    private.type("\x04")
    assert private.ended() == 0
    assert "secret" not in path.read_text()


def test_a_model_cannot_drive_the_terminal(
    live: Callable[..., Live], terminal: Callable[..., Pty]
) -> None:
    reply = "a\x1b]0;owned\x07b\x1b[2Jc\x9b31md\r\x08e"
    it = terminal("--url", live(FakeLLM(reply=reply, chunk=1)).url)
    it.expect(">")
    it.type("hi\r")
    it.expect("prompt tokens cached")
    assert "\x1b]0;owned" not in it.raw and "\x1b[2J" not in it.raw and "\x07" not in it.raw
    assert "\x9b" not in it.raw


def test_a_closed_terminal_ends_the_chat(
    live: Callable[..., Live], terminal: Callable[..., Pty]
) -> None:
    it = terminal("--url", live().url)
    it.expect(">")
    it.process.send_signal(signal.SIGHUP)
    assert it.ended() != 0


def test_control_characters_are_dropped() -> None:
    assert printable("a\x1b[1mb\tc\nd\x7f\x85e\r\n漢") == "a[1mb\tc\nde\n漢"


PIECES = [
    "a",
    "- ",
    "1. ",
    "1",
    "# ",
    "```",
    "\n",
    "\n\n",
    "> ",
    "  ",
    "| a |\n|---|\n",
    "---",
    "**",
]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(PIECES), max_size=25), st.integers(1, 7))
def test_complete_blocks_are_those_of_the_whole_text(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    rest, cuts, at = "", [], 0
    for start in range(0, len(text), size):
        rest += text[start : start + size]
        end = complete(rest)
        at += end
        if end:
            cuts.append(at)
        rest = rest[end:]
    whole = [token.map[0] for token in _tokens(text) if token.level == 0 and token.map]
    lines = [text.count("\n", 0, cut) for cut in cuts]
    assert set(lines) <= set(whole), "no block is cut in two"


def _tokens(text: str) -> Any:
    from inferno.cli.screen import _PARSER

    return _PARSER.parse(text)
