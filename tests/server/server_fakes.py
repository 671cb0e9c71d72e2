"""A model without a model: an AsyncLLM that says what it was told to, one byte a token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from attrs import define, field, frozen
from tests.fake_engine import TOKENIZER

from inferno.builtin import response_template
from inferno.catalog import load_catalog
from inferno.constraints import Grammars, vocabulary_of
from inferno.contracts import ChatNeed, OutputFormat, RequestField
from inferno.errors import EngineDeadError, GrammarError
from inferno.llm import TextDelta
from inferno.llm.grammars import refused_grammar
from inferno.llm.pooling import PoolingConfig
from inferno.llm.preprocessor import Preprocessor
from inferno.process.health import EngineView, Health
from inferno.request.requests import EngineStats, Logprobs, Reduction
from inferno.request.sampling_params import SamplingParams
from inferno.request.sessions import SessionHint
from inferno.text import ChatTemplate, Tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}TOOLS {{ tools | length }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% "
    "endif %}{% endif %}"
)
RESPONSE_TEMPLATE = {
    "version": 1,
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "{content.name}", "arguments": "{content.arguments}"},
            },
        },
        "content": {"close": "<|im_end|>"},
    },
}


@cache
def grammars() -> Grammars:
    offers, _ = load_catalog().grammars()
    providers = {kind: offer.item for kind, offer in offers.items()}
    return Grammars(providers, lambda: vocabulary_of(TOKENIZER, 257))


PLAN = SimpleNamespace(
    queue_policy="first-come",
    sandbox=None,
    sessions=None,
    store=None,
    ref="models/fake",
    path="/models/fake",
    num_parameters=134_515_008,
    grammars=(),
    max_num_seqs=4,
    block_size=16,
    architecture="FakeForCausalLM",
    config={"model_type": "fake", "hidden_size": 4, "max_position_embeddings": 8192},
    format="safetensors",
    dtype="float32",
    schemes=(SimpleNamespace(name="dense", layout="float32", nbytes=100),),
    device=SimpleNamespace(torch_name="cpu"),
    nbytes=150,
    memory=(SimpleNamespace(nbytes=100), SimpleNamespace(nbytes=50)),
    chat_format=SimpleNamespace(name="none"),
)


@frozen(kw_only=True)
class RecordingPreprocessor(Preprocessor):
    """Remembers the conversations it wrote out."""

    prompts: list[str]

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], seconds: float | None = None, /, **kwargs: Any
    ) -> str:
        self.prompts.append(super().render_chat(messages, seconds, **kwargs))
        return self.prompts[-1]


@define(eq=False)
class FakeLLM:
    """Every answer is `reply`, `chunk` characters at a time, over and over where `endless`."""

    reply: str = "Hello there"
    chunk: int = 3
    delay: float = 0.0
    endless: bool = False
    fills_context: bool = False
    """Answers end where the context is full, as an engine's do."""
    dies_after: int | None = None
    """Raise EngineDeadError after this many deltas."""
    fails_after: int | None = None
    """Raise what no handler expects after this many deltas."""
    max_model_len: int = 4096
    vocab_size: int = 257
    alive: bool = True
    is_sleeping: bool = False
    weight_version: str = "0"
    stalled: bool = False
    refuses: Exception | None = None
    """Of `revive`."""
    response_template: Mapping[str, Any] | None = None
    output_format: OutputFormat | None = None
    """Instead of a response template's."""
    default_params: SamplingParams = SamplingParams(max_tokens=256)
    interactive_params: SamplingParams = SamplingParams(max_tokens=None)
    model_id: str = "fake"
    tokenizer: Tokenizer | None = TOKENIZER
    template: ChatTemplate = field(factory=lambda: ChatTemplate({"default": TEMPLATE}))
    stats: EngineStats = field(factory=EngineStats)
    health: Health = Health()
    failed_starts: int = 0
    engines: tuple[EngineView, ...] = ()
    plan: Any = field(factory=lambda: PLAN)
    live: dict[str, asyncio.Event] = field(factory=dict)
    aborted: list[str] = field(factory=list)
    seen: list[tuple[tuple[int, ...], SamplingParams]] = field(factory=list)
    prompts: list[str] = field(factory=list)
    sessions_seen: list[SessionHint | None] = field(factory=list)
    engines_asked: list[int | None] = field(factory=list)
    pooling: PoolingConfig = PoolingConfig()
    poolings: list[Reduction] = field(factory=list)
    """Of the requests for embeddings."""
    request_fields: Mapping[str, RequestField] = field(factory=dict)
    started: int = 0
    made: int = 0
    """Tokens drawn so far."""

    async def start(self) -> None:
        self.started += 1

    async def close(self) -> None:
        self.started -= 1

    async def __aenter__(self) -> FakeLLM:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def preprocessor(self) -> Preprocessor:
        return RecordingPreprocessor(
            tokenizer=self.tokenizer,
            template=self.template,
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            default_params=self.default_params,
            interactive_params=self.interactive_params,
            chat_format=self.chat_format,
            prompts=self.prompts,
            pooling=self.pooling,
        )

    def chat_format(self) -> OutputFormat | None:
        if self.output_format is not None or self.response_template is None:
            return self.output_format
        return response_template.build(ChatNeed(response_template=self.response_template))

    async def sleep(self, level: int = 1, *, mode: str = "wait") -> None:
        self.is_sleeping = True

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        self.is_sleeping = False

    async def check(self, params: SamplingParams) -> None:
        """Compile with the installed plugins, in this process."""
        if (spec := params.structured_outputs) is not None:
            try:
                grammars().compile(spec)
            except GrammarError as error:
                raise refused_grammar(spec, error) from error

    async def revive(self) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.alive, self.stalled = True, False

    def stream_all(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str = "",
        pooling: Reduction | None = None,
        lora: str | None = None,
        session: SessionHint | None = None,
        tenant: str = "",
        engine: int | None = None,
    ) -> AsyncGenerator[list[TextDelta], None]:
        self.sessions_seen.append(session)
        self.engines_asked.append(engine)
        self.preprocessor.check_params(params)
        output = int(pooling is None)
        encoded = [self.preprocessor.encode_prompt(prompt, output) for prompt in prompts]
        if pooling is not None:
            self.seen += [(ids, params) for ids in encoded]
            return self._embed(encoded, pooling, request_id)
        return self._run(encoded, params, request_id)

    async def _embed(
        self, prompts: list[tuple[int, ...]], pooling: Reduction, name: str
    ) -> AsyncGenerator[list[TextDelta], None]:
        """Each prompt's vector is (3, 4, its first token, its length)."""
        self.poolings.append(pooling)
        self.live[name] = asyncio.Event()
        try:
            for i, ids in reversed(list(enumerate(prompts))):  # as they end, not as they came
                await asyncio.sleep(self.delay)
                vector = (3.0, 4.0, float(ids[0]), float(len(ids)))
                yield [TextDelta(index=i, finish_reason="stop", embedding=vector)]
        finally:
            self.live.pop(name, None)

    def abort(self, request_id: str) -> None:
        if request_id in self.live:
            self.aborted.append(request_id)
            self.live[request_id].set()

    async def _run(
        self, prompts: list[tuple[int, ...]], params: SamplingParams, name: str
    ) -> AsyncGenerator[list[TextDelta], None]:
        self.seen += [(ids, params) for ids in prompts]
        stop = self.live[name] = asyncio.Event()
        try:
            step, at, sent = 0, [0] * (len(prompts) * params.n), 0
            while True:
                await asyncio.sleep(
                    self.delay
                )  # with 0 there is always a token ready, once the others had their turn
                if step == self.dies_after:
                    raise EngineDeadError("the engine process ended", "Send it again.")
                if step == self.fails_after:
                    raise ZeroDivisionError("secret")
                deltas = []
                for i in range(len(at)):
                    ids = prompts[i // params.n]
                    deltas += self._next(i, at, ids, params, first=sent == 0, aborted=stop.is_set())
                sent += 1
                step += 1
                if deltas:
                    yield deltas
                if all(a < 0 for a in at):
                    return
        finally:
            self.live.pop(name, None)

    def _next(
        self,
        i: int,
        at: list[int],
        ids: tuple[int, ...],
        params: SamplingParams,
        *,
        first: bool,
        aborted: bool,
    ) -> list[TextDelta]:
        if at[i] < 0:
            return []
        if aborted:
            at[i] = -1
            return [TextDelta(index=i, finish_reason="abort")]
        limit = params.max_tokens or 10**9
        if self.fills_context:
            limit = min(limit, self.max_model_len - len(ids))
        end = min(at[i] + self.chunk, limit, 10**9 if self.endless else len(self.reply))
        text = "".join(self.reply[k % len(self.reply)] for k in range(at[i], end))
        finish = (
            "length"
            if end == limit
            else "stop"
            if not self.endless and end == len(self.reply)
            else None
        )
        at[i] = -1 if finish else end
        tokens = tuple(text.encode())
        self.made += len(tokens)
        return [
            TextDelta(
                index=i,
                text=text,
                token_ids=tokens,
                logprobs=tuple(_score(t, params.logprobs) for t in tokens)
                if params.logprobs is not None
                else None,
                finish_reason=finish,
                # Further outputs find the prompt that the first one computes.
                num_cached=0 if not first else 2 if i % params.n == 0 else len(ids) - 1,
                prompt_logprobs=(None, *(_score(t, params.prompt_logprobs) for t in ids[1:]))
                if params.prompt_logprobs is not None and first and i % params.n == 0
                else None,
            )
        ]


def _score(token: int, top: int | None) -> Logprobs:
    return Logprobs(token, -0.5, 1, tuple((token + k, -0.5 - k) for k in range(top or 0)))
