"""The model that one app serves, and how a conversation becomes its prompt."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from attrs import asdict, frozen

from inferno.errors import RequestError
from inferno.images.limits import DEFAULT_LIMITS
from inferno.llm.images import seeing
from inferno.server.chat.fetching import ImageFetcher
from inferno.server.chat.images import is_medium_part, read_images
from inferno.server.chat.rendered import Rendered
from inferno.server.chat.thinking import Thinking
from inferno.server.fields.schema import ChatRequest, Message, TokenizeRequest
from inferno.server.http.errors import log
from inferno.server.observe.record import current
from inferno.text.template import SlowTemplateError

if TYPE_CHECKING:
    from inferno.contracts import OutputFormat
    from inferno.llm import AsyncLLM
    from inferno.llm.preprocessor import Preprocessor
    from inferno.server.generate.pipeline import Pipeline
    from inferno.text import Tokenizer

T = TypeVar("T")

_ROLES = ("system", "developer", "user", "assistant", "tool")
_ENDINGS = ("add_generation_prompt", "continue_final_message")
_LONG = 20_000
"""Characters of a prompt above which it is tokenized in a thread, to not delay every stream."""
_BRIEF_SECONDS = 0.02
"""How long a template may hold up every stream. One that takes longer begins again in a thread."""


@frozen
class ChatPrompt:
    """A conversation that is rendered and tokenized."""

    rendered: Rendered
    token_ids: tuple[int, ...]
    ignored: tuple[str, ...]
    """Template variables in the request that the template does not use."""

    @property
    def text(self) -> str:
        return self.rendered.text


def num_rows(llm: AsyncLLM) -> int:
    """Return how many requests a model computes at once, in all its engines."""
    return llm.plan.max_num_seqs * max(1, len(llm.engines))


class ServedModel:
    """A model, its names for clients, and its output format. (Not an attrs class: Litestar would
    inspect it.)"""

    def __init__(
        self,
        pipeline: Pipeline,
        served_names: Sequence[str],
        reasoning_fields: Sequence[str],
        images: ImageFetcher | None = None,
    ) -> None:
        self.pipeline = pipeline
        """Generates its answers."""
        self.llm = llm = pipeline.llm
        self.names = tuple(served_names) or (llm.model_id,)
        """Answers have the first one if the request names none."""
        self.reasoning_fields = tuple(reasoning_fields)
        """The fields of a message for the model's reasoning."""
        self.output_format: OutputFormat | None = None
        """Built by `warm_up`. None: all output is content."""
        self.created = int(time.time())
        self.images = images or ImageFetcher(DEFAULT_LIMITS)
        """What is accepted of images and audio, if the model reads any."""

    @property
    def num_rows(self) -> int:
        """How many requests it computes at once."""
        return num_rows(self.llm)

    @property
    def preprocessor(self) -> Preprocessor:
        return self.llm.preprocessor

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.llm.preprocessor.tokenizer

    def under(self, name: str) -> ServedModel:
        """Return the same model under the name of one of its adapters: requests are computed with
        it."""
        model = copy.copy(self)
        model.names = (name,)
        return model

    def name(self, wanted: str | None) -> str:
        """Return the name for the answer: the one that the request used."""
        return self.names[0] if wanted is None else wanted

    def needed_tokenizer(self, param: str | None = None) -> Tokenizer:
        """Return the tokenizer. Raises RequestError if the model has none."""
        if self.tokenizer is None:
            raise RequestError(
                "this model has no tokenizer", "Send token ids to /v1/completions.", param=param
            )
        return self.tokenizer

    async def encode_chat(
        self,
        data: ChatRequest | TokenizeRequest,
        tools: Sequence[dict[str, Any]],
        least: int = 0,
    ) -> ChatPrompt:
        """Render the conversation with the model's chat template. Raises RequestError, but not for
        a length of up to `least` characters."""
        given = [_message(m, i) for i, m in enumerate(data.messages or ())]
        messages, pictures = await read_images(given, self.llm, self.images)
        tokenizer, preprocessor = self.needed_tokenizer("messages"), self.preprocessor
        source = preprocessor.template.source(tools=bool(tools))
        variables = _variables(data.chat_template_kwargs or {})
        thinking, no_effect = dict[str, Any](), tuple[str, ...]()
        if isinstance(data, ChatRequest):
            known = preprocessor.template.variables(source)
            thinking, no_effect = Thinking.of(data).variables(known)
        options = {**thinking, **variables, **_ending(data)}
        special = isinstance(data, TokenizeRequest) and bool(data.add_special_tokens)

        characters = sum(len(str(m.get("content"))) for m in messages)
        preprocessor.check_characters(characters, "messages", least)
        record, salt = current(), ""
        if isinstance(data, ChatRequest):
            salt = data.cache_salt or ""
        rest = [tools, [{k: v for k, v in m.items() if k != "content"} for m in messages]]
        characters += len(msgspec.json.encode(rest))

        def work(seconds: float | None = None) -> tuple[Rendered, tuple[int, ...]]:
            text = preprocessor.render_chat(messages, seconds, tools=tools or None, **options)
            preprocessor.check_characters(len(text), "messages", least)
            rendered = Rendered.of(text, messages)
            if isinstance(data, TokenizeRequest):
                ids = tokenizer.encode(text, add_special_tokens=special)
            else:
                whole = record.cache_salt(salt) if record else salt
                ids = self.pipeline.memory.turns.encode(tokenizer, text, whole)
            return rendered, seeing(ids, pictures, preprocessor.images)

        try:
            brief = None if characters > _LONG else _BRIEF_SECONDS
            rendered, ids = await in_time(partial(work, brief), characters, tokenizer)
        except SlowTemplateError:
            if brief is None:
                raise
            rendered, ids = await asyncio.to_thread(work)
        unknown = [f"chat_template_kwargs.{name[:80]}" for name in variables if name not in source]
        return ChatPrompt(rendered, ids, (*no_effect, *unknown[:20]))

    def warm_up(self) -> None:
        """Import and compile what would otherwise delay every stream at the first chat."""
        try:
            self.output_format = self.preprocessor.chat_format()
        except ValueError as error:
            log.warning(
                "tool calls and reasoning are not parsed: the chat format is invalid: %s",
                error,
            )
        # A template may refuse this conversation but accept others.
        try:
            self.preprocessor.render_chat([{"role": "user", "content": "."}])
        except SlowTemplateError as error:
            log.warning("chats may be refused: %s", error.cause)
        except Exception as error:
            log.debug("the chat template refuses a single message: %s", error)


async def in_time(work: Callable[[], T], characters: int, tokenizer: Tokenizer | None = None) -> T:
    """Run `work`, in a thread if tokenizing that many characters would delay streams: any, if the
    tokenizer is another process."""
    waits = characters > _LONG or (tokenizer is not None and tokenizer.waits)
    return await asyncio.to_thread(work) if waits else work()


def _message(message: Message, i: int) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise RequestError(
            f"messages[{i}] has the unknown role {message.role[:40]!r}",
            f"Use one of {', '.join(_ROLES)}.",
            param=f"messages[{i}].role",
        )
    plain = {name: value for name, value in asdict(message).items() if value is not None}
    for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if is_medium_part(part):
            continue
        if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(
            part.get("text"), str
        ):
            raise RequestError(
                f"messages[{i}].content[{j}] has unsupported type {str(part.get('type'))[:40]!r}",
                "Send parts of the type text, image_url or input_audio.",
                param=f"messages[{i}].content[{j}]",
                code="unsupported_parameter",
            )
    return plain


def _ending(data: ChatRequest | TokenizeRequest) -> dict[str, bool]:
    """Template options for the end of the prompt: open a new message, or continue the last."""
    if not data.continue_final_message:
        return {"add_generation_prompt": data.add_generation_prompt is not False}
    if data.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt cannot be combined",
            "Leave one out.",
            param="add_generation_prompt",
        )
    return {"add_generation_prompt": False, "continue_final_message": True}


def _variables(given: dict[str, Any]) -> dict[str, Any]:
    """Check the template variables of a request, which must not be those of its own fields. Raises
    RequestError."""
    for name in ("tools", *_ENDINGS):
        if name in given:
            raise RequestError(
                f"chat_template_kwargs contains {name}",
                f"Send it as a field of the body: {name}.",
                param=f"chat_template_kwargs.{name}",
            )
    return given
