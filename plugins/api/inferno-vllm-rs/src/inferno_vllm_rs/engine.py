"""`Engine`: answers to prompts, whole or as they come, in the shapes of vllm.rs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal, NoReturn, Self, TypeAlias

import attrs
from attrs import define

from inferno import LLM, InfernoError, RequestOutput
from inferno import SamplingParams as Params
from inferno_vllm_rs.config import DType, EngineConfig, FieldError, SamplingParams


@define
class Message:
    """One turn of a conversation."""

    role: str
    content: str


Prompt: TypeAlias = str | Sequence[Message]
"""Text, as in the first versions of that API, or messages, as in later ones."""


@define(kw_only=True)
class GenerationOutput:
    """One answer. Times are milliseconds since 1970."""

    seq_id: int
    prompt_length: int
    prompt_start_time: int
    decode_start_time: int
    """When the first token came."""
    decode_finish_time: int
    decoded_length: int
    decode_output: str


@define
class StreamItem:
    """TOKEN: the next text. DONE: (prompt start, decode start, decode finish, tokens), times in
    milliseconds since 1970. ERROR: the message."""

    datatype: Literal["TOKEN", "DONE", "ERROR"]
    data: str | tuple[int, int, int, int]


class EngineStream:
    """One answer as it comes. Ends with a DONE or an ERROR item."""

    def __init__(self, seq_id: int, prompt_length: int, deltas: Generator[Any, None, None]) -> None:
        self.seq_id, self.prompt_length = seq_id, prompt_length
        self.cancelled = False
        self.finished = False
        self._deltas = deltas
        self._items = self._run()

    def cancel(self) -> None:
        """Abort the request; the stream ends at its next item."""
        self.cancelled = True

    def __iter__(self) -> Iterator[StreamItem]:
        return self

    def __next__(self) -> StreamItem:
        return next(self._items)

    def _run(self) -> Generator[StreamItem, None, None]:
        start = _milliseconds(time.time())
        first = count = 0
        try:
            for delta in self._deltas:
                first = first or _milliseconds(time.time())
                count += len(delta.token_ids)
                if delta.text:
                    yield StreamItem("TOKEN", delta.text)
                if self.cancelled:
                    break
            yield StreamItem("DONE", (start, first, _milliseconds(time.time()), count))
        except InfernoError as error:
            yield StreamItem("ERROR", str(error))
        finally:
            self.finished = True
            self._deltas.close()  # aborts what still runs


class Engine:
    """A loaded model. Params may be inferno's own, too."""

    def __init__(self, config: EngineConfig, dtype: DType | str = DType.BF16) -> None:
        computed_in = DType.of(dtype).name_here
        self._begin(LLM(config.ref, dtype=computed_in, **config.options()), config)

    @classmethod
    def of(cls, llm: LLM, config: EngineConfig | None = None) -> Self:
        """An Engine around an LLM that is loaded already."""
        self = cls.__new__(cls)
        self._begin(llm, config or EngineConfig())
        return self

    def _begin(self, llm: LLM, config: EngineConfig) -> None:
        self._llm, self._config = llm, config
        self._ids = itertools.count()

    def apply_chat_template(
        self, messages: Sequence[Message], add_generation_prompt: bool = True
    ) -> str:
        """The prompt text of a conversation."""
        return self._llm.preprocessor.render_chat(
            [attrs.asdict(m) for m in messages], add_generation_prompt=add_generation_prompt
        )

    def generate_sync(
        self,
        params: SamplingParams | Params | Sequence[SamplingParams | Params],
        prompts: Sequence[Prompt],
    ) -> list[GenerationOutput]:
        """All answers, in the order of the prompts. `params` are one for all, or one for each."""
        each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        outputs = self._llm.generate(
            [self._encode(p) for p in prompts],
            [self._params(p) for p in each],
            session=[_session(p) for p in each],
        )
        return [self._generated(output) for output in outputs]

    def generate_stream(
        self, params: SamplingParams | Params, prompt: Prompt
    ) -> tuple[int, int, EngineStream]:
        """(sequence id, prompt length in tokens, the answer as it comes)."""
        token_ids = self._encode(prompt)
        deltas = self._llm.stream(token_ids, self._params(params), session=_session(params))
        stream = EngineStream(next(self._ids), len(token_ids), deltas)
        return stream.seq_id, stream.prompt_length, stream

    def close(self) -> None:
        """Free the model's memory."""
        self._llm.close()

    def start_server(self, port: int = 8000, with_ui_server: bool = False) -> NoReturn:
        """Refused: a server is a process."""
        raise FieldError("Engine.start_server is not offered", "Run `inferno serve REF`.")

    def get_num_cached_tokens(self) -> NoReturn:
        """Refused: the count is a server's metric."""
        raise FieldError(
            "Engine.get_num_cached_tokens is not offered", "Read /metrics of `inferno serve`."
        )

    def get_available_kv_tokens(self) -> NoReturn:
        """Refused: the count is a server's metric."""
        raise FieldError(
            "Engine.get_available_kv_tokens is not offered", "Read /metrics of `inferno serve`."
        )

    def _params(self, params: SamplingParams | Params) -> Params:
        if isinstance(params, Params):
            return params
        return params.merged(self._config, self._llm.preprocessor.default_params)

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return self._llm.preprocessor.encode_prompt(prompt)
        return self._llm.preprocessor.encode_chat([attrs.asdict(m) for m in prompt])

    def _generated(self, output: RequestOutput) -> GenerationOutput:
        return GenerationOutput(
            seq_id=next(self._ids),
            prompt_length=len(output.prompt_token_ids),
            prompt_start_time=_milliseconds(output.metrics.arrival_time),
            decode_start_time=_milliseconds(output.metrics.first_token_time),
            decode_finish_time=_milliseconds(output.metrics.finished_time),
            decoded_length=len(output.outputs[0].token_ids),
            decode_output=output.outputs[0].text,
        )


def _session(params: SamplingParams | Params) -> str | None:
    return params.session_id if isinstance(params, SamplingParams) else None


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
