"""What every handler of one app shares."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import evolve

from inferno.core.types import SamplingParams
from inferno.errors import RequestError
from inferno.server.errors import UnknownModelError
from inferno.server.output_parser import Dialect

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM
    from inferno.server.generation import Limiter
    from inferno.server.metrics import Metrics
    from inferno.server.schema import Generation


class Service:
    """One app's model, gate, metrics and manners. (No attrs class: Litestar would look inside.)"""

    def __init__(
        self,
        *,
        llm: AsyncLLM,
        gate: Limiter,
        metrics: Metrics,
        served_names: tuple[str, ...],
        strict_params: bool,
        reasoning_fields: tuple[str, ...],
        ping_seconds: float,
    ) -> None:
        self.llm, self.gate, self.metrics = llm, gate, metrics
        self.served_names = served_names
        """The names clients may call the model by, the first by default; none for the model's
        own."""
        self.strict_params = strict_params
        self.reasoning_fields, self.ping_seconds = reasoning_fields, ping_seconds
        self.dialect = Dialect()
        """The model's, once the app has started."""
        self.created = int(time.time())

    @property
    def names(self) -> tuple[str, ...]:
        return self.served_names or (self.llm.model_id,)

    def model(self, wanted: str | None) -> str:
        """The name to answer with. Raises UnknownModelError."""
        if wanted is None:
            return self.names[0]
        if wanted not in self.names:
            raise UnknownModelError(
                f"the model {wanted[:200]!r} does not exist",
                f"Served here: {', '.join(self.names)}",
            )
        return wanted


def sampling(
    data: Generation,
    defaults: SamplingParams,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    special: bool = False,
) -> SamplingParams:
    """The request's sampling parameters; those not given are the checkpoint's. `special` keeps
    special tokens in the text unless the request says otherwise. Raises RequestError."""
    given = {name: value for name in _PASSED if (value := getattr(data, name)) is not None}
    if special:
        given.setdefault("skip_special_tokens", False)
    return evolve(
        defaults,
        **given,
        logit_bias=_biases(data.logit_bias or {}),
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


_PASSED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "repeat_last_n",
    "seed",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "n",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


def check_salt(salt: str | None) -> str:
    """Raises RequestError."""
    if salt is None:
        return ""
    if not 0 < len(salt) <= 128 or any(c in salt for c in "@/\\\0"):
        raise RequestError(
            "cache_salt is not usable",
            "Give 1 to 128 characters without @, / and \\.",
            param="cache_salt",
        )
    return salt


def _biases(raw: dict[str, float]) -> dict[int, float]:
    try:
        biases = {int(token): bias for token, bias in raw.items()}
    except ValueError as error:
        raise RequestError(
            "logit_bias has a key that is no token id", "Use /tokenize.", param="logit_bias"
        ) from error
    if any(not -100 <= bias <= 100 for bias in biases.values()):
        raise RequestError(
            "logit_bias is out of range", "Biases go from -100 to 100.", param="logit_bias"
        )
    return biases
