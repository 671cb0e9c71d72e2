"""The API of the projects inferno follows, vllm.rs first: `Engine`, `EngineConfig`, `Message` and
friends.

A thin layer over `LLM`; new code is better off with that. Prompts may be texts, as in its first
versions, or lists of messages, as in later ones. `session_id` is accepted as what it is today, a
hint: the prefix cache finds a conversation's beginning by its content, whoever asks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal, Self, TypeAlias

import attrs
from attrs import frozen

from inferno.core.sampling_params import SamplingParams as Params
from inferno.errors import InfernoError, OptionError
from inferno.llm import LLM, RequestOutput, TextDelta

_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


@frozen(kw_only=True)
class EngineConfig:
    """What to load: a directory (`weight_path`), a file (`weight_file`) or a hub id (`model_id`),
    and limits. None leaves a limit to the plan."""

    weight_path: str | None = None
    weight_file: str | None = None
    model_id: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_shards: int | None = None
    """Devices to split the model over."""
    isq: str | None = None
    seed: int | None = None

    def ref(self) -> str:
        given = [r for r in (self.weight_path, self.weight_file, self.model_id) if r]
        if len(given) != 1:
            raise OptionError(
                f"EngineConfig names {len(given)} models",
                "Give one of weight_path, weight_file and model_id.",
            )
        return given[0]

    def options(self) -> dict[str, Any]:
        names = {"tensor_parallel_size": "num_shards"} | {
            name: name
            for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "isq", "seed")
        }
        given = {option: getattr(self, name) for option, name in names.items()}
        return {option: value for option, value in given.items() if value is not None}


def SamplingParams(
    *, max_tokens: int | None = 4096, session_id: str | None = None, **fields: Any
) -> Params:
    """inferno's, with the longer answers that API defaults to."""
    return Params(max_tokens=max_tokens, **fields)


@frozen
class Message:
    role: str
    content: str


Prompt: TypeAlias = str | Sequence[Message]


@frozen(kw_only=True)
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


@frozen
class StreamItem:
    """TOKEN: the next text. DONE: (prompt start, decode start, decode finish, tokens), milliseconds
    since 1970. ERROR: what went wrong."""

    datatype: Literal["TOKEN", "DONE", "ERROR"]
    data: str | tuple[int, int, int, int]


class EngineStream:
    """One answer as it comes. Ends with a DONE or an ERROR item."""

    def __init__(
        self, seq_id: int, prompt_length: int, deltas: Generator[TextDelta, None, None]
    ) -> None:
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
    """A loaded model. `dtype` is "bf16", "f16" or "f32"."""

    def __init__(self, config: EngineConfig, dtype: str = "bf16") -> None:
        if dtype not in _DTYPES:
            raise OptionError(f"dtype {dtype!r}", f"There are: {', '.join(_DTYPES)}")
        self._begin(LLM(config.ref(), dtype=_DTYPES[dtype], **config.options()))

    @classmethod
    def of(cls, llm: LLM) -> Self:
        """An Engine around an LLM that exists already."""
        self = cls.__new__(cls)
        self._begin(llm)
        return self

    def _begin(self, llm: LLM) -> None:
        self._llm = llm
        self._ids = itertools.count()

    def apply_chat_template(
        self, messages: Sequence[Message], add_generation_prompt: bool = True
    ) -> str:
        """The prompt text of a conversation."""
        return self._llm.preprocessor.render_chat(
            [attrs.asdict(m) for m in messages], add_generation_prompt=add_generation_prompt
        )

    def generate_sync(
        self, params: Params | Sequence[Params], prompts: Sequence[Prompt]
    ) -> list[GenerationOutput]:
        """All answers, in the order of the prompts. `params` are one for all, or one for each."""
        outputs = self._llm.generate([self._encode(p) for p in prompts], params)
        return [self._generated(output) for output in outputs]

    def generate_stream(self, params: Params, prompt: Prompt) -> tuple[int, int, EngineStream]:
        """(sequence id, prompt length in tokens, the answer as it comes)."""
        token_ids = self._encode(prompt)
        stream = EngineStream(next(self._ids), len(token_ids), self._llm.stream(token_ids, params))
        return stream.seq_id, stream.prompt_length, stream

    def close(self) -> None:
        """Free the model's memory."""
        self._llm.close()

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


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
