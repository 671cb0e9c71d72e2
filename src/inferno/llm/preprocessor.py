"""Turns prompts and parameters into engine requests: shared by `LLM` and `AsyncLLM`."""

from __future__ import annotations

import difflib
import random
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import Any

import attrs
from attrs import field, frozen

from inferno.contracts import (
    LogitsProcessor,
    OutputFormat,
    ReasoningMarkers,
    ToolWriter,
)
from inferno.errors import CONTEXT_LENGTH_EXCEEDED, OptionError, RequestError
from inferno.llm.adapters import AdapterNames
from inferno.llm.defaults import DEFAULT_MAX_TOKENS, default_params, interactive_params
from inferno.llm.images import (
    PromptImages,
    SeeingTokens,
    check_whole,
    images_of,
    pictures_beside,
    read_all,
    seeing,
    written,
)
from inferno.llm.outputs import OutputBuilder, ParentRequest
from inferno.llm.pooling import PoolingConfig
from inferno.llm.prompts import Prompt, integers, second_of, unwrapped
from inferno.plan import Opened, Options, open_model
from inferno.process.tokenizing import tokenizer_of
from inferno.request.processor_calls import ProcessorCall
from inferno.request.requests import Reduction, Request
from inferno.request.sampling_params import SamplingParams
from inferno.request.sessions import SessionHint
from inferno.text import (
    ChatTemplate,
    Tokenizer,
    check_vocabulary,
    eos_token_ids,
    has_tool_turns,
    read_template,
    with_written_tools,
)

MAX_LOGPROB_IDS = 1024
"""Maximum of `logprob_token_ids`."""


def open_for(ref: str | None, options: Mapping[str, Any]) -> Opened:
    """Open the model that `ref` names. Raises OptionError for a missing `ref`, and for an unknown
    option, suggesting similar ones."""
    if ref is None:
        raise OptionError("no model is named", 'Give a directory, a file, a hub id, or "demo".')
    known = [a.name for a in attrs.fields(Options)]
    for name in options:
        if name not in known:
            near = " or ".join(difflib.get_close_matches(name, known, cutoff=0.5))
            hint = f"Did you mean {near}?" if near else f"Options: {', '.join(known)}"
            raise OptionError(f"unknown option {name!r}", hint)
    return open_model(ref, Options(**options))


@frozen(kw_only=True)
class Preprocessor:
    """The text side of a model: tokenizer, chat template, limits and defaults. Validates requests
    before the engine sees them."""

    tokenizer: Tokenizer | None
    template: ChatTemplate = ChatTemplate({})
    max_model_len: int
    vocab_size: int | None = None
    """The model's vocabulary size, which may be padded beyond the tokenizer's; None if unknown."""
    eos_token_ids: tuple[int, ...] = ()
    default_params: SamplingParams = SamplingParams(max_tokens=DEFAULT_MAX_TOKENS)
    """For requests without parameters: from the checkpoint's `generation_config.json`."""
    interactive_params: SamplingParams = SamplingParams(max_tokens=None)
    """For a person at a terminal or at the page who says nothing else."""
    chat_format: Callable[[], OutputFormat | None] = lambda: None
    """Builds the model's output format; None if all output is content. Raises ValueError if the
    checkpoint's own description of it is wrong."""
    pooling: PoolingConfig = PoolingConfig()
    """How prompts become embeddings."""
    logits_processors: Mapping[str, LogitsProcessor] = field(factory=dict)
    """Those that requests may name."""
    images: PromptImages | None = None
    """How prompts have images; None: the model reads text only."""
    adapters: AdapterNames = field(factory=AdapterNames)
    """Those that requests may name."""
    seeds: random.Random = field(factory=random.Random)
    """Draws the seeds of requests that name none, in the order in which they come."""

    @classmethod
    def open(cls, opened: Opened, chat_template: str | None = None) -> Preprocessor:
        """Read the tokenizer and the chat template of an opened model."""
        plan, assets, config = opened.plan, opened.text(), opened.plan.config
        override = None if chat_template is None else read_template(chat_template)
        tokenizer = tokenizer_of(opened)
        for name, other in opened.vocabularies():
            check_vocabulary(name, other, tokenizer)
        eos = tokenizer.eos_token_ids if tokenizer else eos_token_ids(assets, config)
        template = ChatTemplate.from_assets(assets, override)
        reranker = opened.parts.architecture.reranker
        return cls(
            tokenizer=tokenizer,
            template=template,
            max_model_len=plan.max_model_len,
            vocab_size=plan.vocab_size,
            eos_token_ids=tuple(i for i in eos if i < plan.vocab_size),
            default_params=default_params(assets),
            interactive_params=interactive_params(assets),
            chat_format=cache(partial(opened.chat_format, override)),
            pooling=PoolingConfig.of(
                assets, config, tokenizer, template, reranker, generates=not plan.whole_prompts
            ),
            logits_processors=opened.parts.logits_processors,
            images=PromptImages.of(opened),
            adapters=AdapterNames.of(opened),
            seeds=random.Random(plan.seed),
        )

    def encode_prompt(self, prompt: Prompt, output: int = 1) -> tuple[int, ...]:
        """Return the prompt's token ids, checked: valid, not empty, and with room for `output` more
        tokens."""
        return self._checked_length(self._encoded(prompt), output)

    def _encoded(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, SeeingTokens):
            return prompt
        prompt, pictures = pictures_beside(prompt, self.images)
        if isinstance(prompt, str):
            self.check_characters(len(prompt), "prompt")
            ids = tuple(self.needed_tokenizer("prompt").encode(prompt))
        else:
            ids = integers(prompt)
            self.check_ids("prompt", ids)
        return seeing(ids, pictures, self.images, "prompt")

    def check_characters(self, count: int, param: str, least: int = 0) -> None:
        """Raise RequestError for a string of so many characters that it exceeds the context
        whatever they are: encoding takes a second per million. `least` are always allowed."""
        tokenizer = self.needed_tokenizer(param)
        if count <= max(self.max_model_len, least):
            return
        longest = tokenizer.longest_token  # looks at the whole vocabulary
        if count > self.max_model_len * longest:
            raise RequestError(
                f"{param} has {count} characters, but the context holds {self.max_model_len} "
                f"tokens, each of at most {longest} characters",
                "Shorten it, or start with a larger --max-model-len if the model allows it.",
                param=param,
                code=CONTEXT_LENGTH_EXCEEDED,
            )

    def truncated(self, token_ids: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        """Return the tokens of a prompt that `params.truncate_prompt_tokens` keeps: the last."""
        count = params.truncate_prompt_tokens
        if count is None:
            return token_ids
        check_whole(token_ids)
        if count < 0:
            count = max(1, self.max_model_len - (params.max_tokens or 1))
        return token_ids[-count:]

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        seconds: float | None = None,
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> str:
        """Render a conversation to a prompt string. Takes `tools`, `add_generation_prompt` and the
        template's own variables, which may take so many `seconds`, or 2. Tools that the template
        cannot write are written as text."""
        writer = self._tool_writer() if tools or has_tool_turns(messages) else None
        if writer is not None:
            messages, tools = with_written_tools(messages, tools, writer), None
        text = self.template.render(messages, seconds, tools=tools, **template_kwargs)
        return written(text, self.images)

    def _tool_writer(self) -> ToolWriter | None:
        try:
            return getattr(self.chat_format(), "tool_writer", None)
        except ValueError:  # who parses the output reports it
            return None

    def reasoned(
        self, params: SamplingParams, found: OutputFormat | None, prompt: str
    ) -> SamplingParams:
        """Return the parameters for a rendered conversation, with the markers of its reasoning.
        Without any, or if the prompt has closed it, a grammar holds from the first token."""
        spec, budget = params.structured_outputs, params.thinking_token_budget
        opening, closing = (found.reasoning if found is not None else None) or ("", "")
        closed = not closing or prompt.rstrip().endswith(closing.strip())
        if found is None or closed or (spec is None and budget is None):
            return attrs.evolve(params, thinking_token_budget=None) if budget else params
        is_open = found.opens_reasoning(prompt)
        markers = ReasoningMarkers(
            open=opening.strip(),
            close=closing.strip(),
            is_open=is_open,
            calls=tuple(marker.strip() for marker in found.call_markers),
            calls_end=getattr(found, "call_ends_reasoning", False),
        )
        if spec is not None and spec.reasoning is None:
            spec = attrs.evolve(spec, reasoning=markers)
        return attrs.evolve(params, structured_outputs=spec, reasoning=markers)

    def chat_params(
        self, params: SamplingParams | None, token_ids: Sequence[int]
    ) -> SamplingParams | None:
        """Return `reasoned` parameters for an encoded conversation."""
        ruled = params and (params.structured_outputs or params.thinking_token_budget is not None)
        if params is None or not ruled or self.tokenizer is None:
            return params
        ending = self.tokenizer.decode(token_ids[-32:], skip_special_tokens=False)
        return self.reasoned(params, self.chat_format(), ending)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], /, **template_kwargs: Any
    ) -> tuple[int, ...]:
        """Return the token ids of `render_chat`, checked like a prompt's. No special tokens are
        added: the template writes them. Images are read in this process."""
        messages, pictures = read_all(messages, self.images, "this model")
        text = self.render_chat(messages, **template_kwargs)
        self.check_characters(len(text), "messages")
        ids = self.needed_tokenizer("messages").encode(text, add_special_tokens=False)
        return self._checked_length(seeing(ids, pictures, self.images))

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        pooling: Reduction | None = None,
        lora: str | None = None,
        session: SessionHint | None = None,
        tenant: str = "",
        engine: int | None = None,
    ) -> ParentRequest:
        """Validate a prompt and build its requests. `lora`: an adapter. Raises RequestError."""
        self.pooling.check_head(pooling)
        params = params or self.default_params
        output = int(pooling is None)
        token_ids = self._checked_length(self.truncated(self._encoded(prompt), params), output)
        self.check_params(params)
        if output:
            params = self._bounded(params, self.max_model_len - len(token_ids))
        request_id = request_id or uuid.uuid4().hex
        second = second_of(prompt, len(token_ids))
        if isinstance(prompt, Mapping):
            prompt = unwrapped(prompt)
        bad_words = self._bad_words(params)
        requests = [
            Request(
                id=request_id if params.n == 1 else f"{request_id}#{i}",
                token_ids=tuple(token_ids),
                images=images_of(token_ids),
                params=_nth(params, i),
                eos_token_ids=() if params.ignore_eos else self.eos_token_ids,
                priority=priority,
                tenant=tenant,
                engine=engine,
                cache_salt=cache_salt,
                adapter=self.adapters.named(lora),
                session=session,
                bad_words=bad_words,
                pooling=pooling,
                second=second,
                is_copy=i > 0,
                unseeded=self.seeds.getrandbits(64),
            )
            for i in range(params.n)
        ]
        each = (OutputBuilder(r, i, self.tokenizer, token_ids) for i, r in enumerate(requests))
        text = prompt if isinstance(prompt, str) else None
        return ParentRequest(request_id, text, tuple(each), self.tokenizer)

    def needed_tokenizer(self, param: str) -> Tokenizer:
        """Return the tokenizer. Raises RequestError if the model has none."""
        if self.tokenizer is None:
            remedy = "Send token ids instead of a string."
            raise RequestError("this model has no tokenizer", remedy, param=param)
        return self.tokenizer

    def _checked_length(self, ids: tuple[int, ...], output: int = 1) -> tuple[int, ...]:
        """Return the ids, if there is room for them and as many tokens of output."""
        if not ids:
            raise RequestError("the prompt is empty", "Send at least one token.", param="prompt")
        if len(ids) + output > self.max_model_len:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, but the context holds {self.max_model_len}"
                + (", including at least one of output" if output else ""),
                "Shorten the prompt, or start with a larger --max-model-len if the model "
                "allows it.",
                param="prompt",
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        return ids

    def check_ids(self, param: str, ids: Collection[int]) -> None:
        """Raise RequestError for an id that the model does not have."""
        end = float("inf") if self.vocab_size is None else self.vocab_size
        unknown = next((i for i in ids if not 0 <= i < end), None)
        if unknown is not None:
            raise RequestError(
                f"{param} contains the invalid token id {unknown}",
                f"The model's ids are 0 to {end - 1}.",
                param=param,
            )

    def check_params(self, params: SamplingParams) -> None:
        """Raise RequestError for parameters that this model cannot honour."""
        if params.stop and self.tokenizer is None:
            raise RequestError(
                "stop strings need a tokenizer, which this model lacks",
                "Use stop_token_ids.",
                param="stop",
            )
        self.check_ids("logit_bias", params.logit_bias)
        for i, call in enumerate(params.logits_processors):
            self._check_processor(call, f"logits_processors[{i}]")
        self.check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self.check_ids("stop_token_ids", params.stop_token_ids)
        wanted = params.logprob_token_ids
        self.check_ids("logprob_token_ids", wanted)
        if len(wanted) > MAX_LOGPROB_IDS or (wanted and params.logprobs is None):
            raise RequestError(
                f"logprob_token_ids has {len(wanted)} entries, and logprobs is {params.logprobs}",
                f"Ask for logprobs, and give at most {MAX_LOGPROB_IDS}.",
                param="logprob_token_ids",
            )

    def _check_processor(self, call: ProcessorCall, param: str) -> None:
        known = self.logits_processors
        if call.name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise RequestError(
                f"there is no logits processor {call.name[:80]!r}",
                f"Installed: {names}.",
                param=f"{param}.name",
            )
        try:
            known[call.name].check(call.values)
        except ValueError as error:
            help = known[call.name].help or "Correct the arguments."
            raise RequestError(f"{param}.args: {error}", help, param=f"{param}.args") from error

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of `bad_words`, at the begin of a string and after a space, as in
        vLLM."""
        spellings: dict[tuple[int, ...], None] = {}
        for word in params.bad_words:
            encode = self.needed_tokenizer("bad_words").encode
            plain = tuple(encode(word.lstrip(), add_special_tokens=False))
            spaced = tuple(encode(" " + word.lstrip(), add_special_tokens=False))
            # A space of its own, as of a tokenizer without one in its tokens, bans nothing more.
            for ids in (plain, spaced if len(spaced) == len(plain) else plain):
                if ids:
                    self.check_ids("bad_words", ids)
                    spellings[ids] = None
        return tuple(spellings)

    def _bounded(self, params: SamplingParams, room: int) -> SamplingParams:
        """Limit `max_tokens` to the context: an answer that fills it finishes with "length", as in
        vLLM."""
        if params.min_tokens > room:
            raise RequestError(
                f"min_tokens is {params.min_tokens}, but the prompt leaves room for {room}",
                "Shorten the prompt, or lower min_tokens.",
                param="min_tokens",
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        return attrs.evolve(
            params, max_tokens=room if params.max_tokens is None else min(params.max_tokens, room)
        )


def _nth(params: SamplingParams, index: int) -> SamplingParams:
    """Parameters of output `index` as a separate request. Only the first scores the prompt."""
    if params.n == 1:
        return params
    return attrs.evolve(
        params,
        n=1,
        seed=None if params.seed is None else params.seed + index,
        prompt_logprobs=params.prompt_logprobs if index == 0 else None,
    )
