"""What the server costs a token besides the model: from the engine client to an answer's bytes. No
model runs and no socket is opened; tokens are made up, one for each running request in each turn of
the event loop.

    python benchmarks/http_cost.py [--requests 64] [--tokens 256] [--repeats 5]

The figure is tokens per second of processor time, the best of the repeats: higher is better.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from time import process_time
from types import SimpleNamespace
from typing import Any, cast

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from inferno.llm import AsyncLLM
from inferno.llm.preprocessor import Preprocessor
from inferno.process.client import TokenStream
from inferno.process.health import EngineView, Health
from inferno.request.requests import EngineOutput, EngineStats, FinishReason, Request
from inferno.server import create_app
from inferno.text import ChatTemplate, Tokenizer

MESSAGES = [{"role": "user", "content": "What is there to measure?"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "chat, streamed": (CHAT, {"messages": MESSAGES, "stream": True}, 1),
    "chat, whole": (CHAT, {"messages": MESSAGES}, 1),
    "chat, streamed, n=4": (CHAT, {"messages": MESSAGES, "stream": True, "n": 4}, 4),
    "text, streamed": (TEXT, {"prompt": "a", "stream": True}, 1),
    "text, streamed, 4 prompts": (TEXT, {"prompt": ["a", "b", "c", "d"], "stream": True}, 4),
}
"""Name: path, body, outputs of a request."""
PLAN: Any = SimpleNamespace(
    model_id="fake",
    ref="fake",
    queue_policy="first-come",
    max_num_seqs=4096,
    max_model_len=100_000,
    nbytes=0,
    images=None,
    media=(),
    memory=(),
    sessions=None,
    grammars=(),
    device=SimpleNamespace(torch_name="cpu"),
)
"""What a server asks of a plan."""


class Client:
    """An engine client whose engine draws "a" for each request, once in each turn of the loop."""

    def __init__(self) -> None:
        self.plan = PLAN
        self.alive, self.stalled, self.asleep, self.weight_version = True, False, False, "0"
        self.stats, self.health, self.failed_starts = EngineStats(), Health(), 0
        self.engines: tuple[EngineView, ...] = ()
        self._running: dict[str, tuple[TokenStream, Request, int]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def check(self, spec: Any) -> None: ...

    def submit(self, request: Request, *news: Any) -> TokenStream:
        stream = TokenStream(request.id, *news)
        self._running[request.id] = (stream, request, 0)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._draw())
        return stream

    def abort(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    async def _draw(self) -> None:
        token_id = TOKENIZER.encode("a")[0]
        while self._running:
            for name, (stream, request, drawn) in list(self._running.items()):
                last = drawn + 1 == request.params.max_tokens
                stream.feed(EngineOutput(name, token_id, FinishReason.LENGTH if last else None))
                if last:
                    del self._running[name]
                else:
                    self._running[name] = (stream, request, drawn + 1)
            await asyncio.sleep(0)


def _byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, eos_token_ids=())


TOKENIZER = _byte_tokenizer()


def _app() -> Any:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    preprocessor = Preprocessor(
        tokenizer=TOKENIZER,
        template=ChatTemplate({"default": template}),
        max_model_len=100_000,
        vocab_size=256,
    )
    return create_app(AsyncLLM.of(cast(Any, Client()), preprocessor))


async def _post(app: Any, path: str, body: bytes) -> int:
    """Bytes of the answer's body."""
    sent, size = False, 0

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # a client that stays
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal size
        assert message.get("status", 200) == 200, message
        size += len(message.get("body", b""))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("test", 1),
        "server": ("test", 80),
        "state": {},
    }
    await app(scope, receive, send)
    return size


async def _measure(case: str, requests: int, tokens: int) -> float:
    path, body, outputs = CASES[case]
    app, count = _app(), requests // outputs
    data = json.dumps({**body, "max_tokens": tokens, "ignore_eos": True}).encode()
    async with app.lifespan():
        await _post(app, path, data)
        start = process_time()
        sizes = await asyncio.gather(*(_post(app, path, data) for _ in range(count)))
        seconds = process_time() - start
    assert min(sizes) >= tokens * outputs, "every token is in the answer"
    return count * outputs * tokens / seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--requests", type=int, default=64, help="Outputs at once")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    print(f"{'case':<28}{'tokens/s':>10}")
    for case in CASES:
        speeds = [
            asyncio.run(_measure(case, options.requests, options.tokens))
            for _ in range(options.repeats)
        ]
        print(f"{case:<28}{max(speeds):>10.0f}")


if __name__ == "__main__":
    main()
