"""`LLM`: the engine in this process, called synchronously."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, get_ident
from typing import Any, Self, cast

from inferno.errors import GrammarError, OptionError, RequestError
from inferno.host import load_torch_library, sleep_at_barriers
from inferno.llm.adapters import reading
from inferno.llm.engine import SleepingEngine, StepEngine, in_own_processes
from inferno.llm.grammars import refused_grammar
from inferno.llm.outputs import OutputBuilder, ParentRequest, RequestOutput, TextDelta
from inferno.llm.pairs import paired, scoring_of
from inferno.llm.preprocessor import Preprocessor, open_for
from inferno.llm.prompts import (
    Messages,
    Params,
    Prompt,
    Sessions,
    hints_of,
    is_one_conversation,
    params_of,
    prompts_of,
    with_seconds,
)
from inferno.llm.turns import Turns
from inferno.llm.weights import Weights, unless_failed, weights_file, woken_wholly
from inferno.process.prepare import prepared
from inferno.request.requests import EngineOutput, FinishReason, Pooling, pause_mode
from inferno.request.sampling_params import SamplingParams
from inferno.request.sessions import SessionView, hint_of, short_name


class LLM:
    """A loaded model: prompts in, completions out, with all prompts of a call batched.

    `ref` is a directory, a file, a hub id or "demo" (`model` is vLLM's name for it); `options` are
    the fields of `inferno.plan.Options`; `chat_template` replaces the checkpoint's: a template
    or a file. Several threads may call it: each step computes tokens for all of them. A child of
    fork may not. With `dp`, several engines compute in processes of their own.

    Without params, sampling follows the checkpoint's generation_config.json, for at most 256 tokens
    (or the file's `max_new_tokens`). With params, `max_tokens` defaults to 16, as in vLLM, and None
    means until the context is full. Answers that fill the context finish with "length".
    """

    def __init__(
        self,
        ref: str | None = None,
        *,
        model: str | None = None,
        chat_template: str | None = None,
        **options: Any,
    ) -> None:
        sleep_at_barriers()  # of no effect if torch is imported already
        load_torch_library()
        if options.get("prefill_for") or options.get("sandbox"):
            raise OptionError(
                "LLM computes in this process: it cannot prefill for others, nor be confined",
                "Use AsyncLLM, or `inferno serve`.",
            )
        with open_for(ref or model, options) as opened, prepared(opened) as packed:
            if opened.plan.engines is not None:
                return self._begin(*in_own_processes(opened, chat_template))
            # The tokenizer takes half a second of another core while torch is imported.
            with ThreadPoolExecutor(1, "inferno text") as beside:
                preprocessor = beside.submit(Preprocessor.open, opened, chat_template)
                from inferno.process.ranks.engine import load_engine  # imports torch

                engine = load_engine(opened, packed)
            self._begin(engine, preprocessor.result())

    @classmethod
    def of(cls, engine: StepEngine, preprocessor: Preprocessor) -> Self:
        """An LLM around an existing engine."""
        self = cls.__new__(cls)
        self._begin(engine, preprocessor)
        return self

    def _begin(self, engine: StepEngine, preprocessor: Preprocessor) -> None:
        self._engine, self._preprocessor = engine, preprocessor
        self._live: dict[str, OutputBuilder] = {}
        self._turns = Turns()
        self._awake, self._sleeper = Event(), 0
        self._awake.set()

    @property
    def preprocessor(self) -> Preprocessor:
        """The model's text side: tokenizer, chat template, limits, default parameters."""
        return self._preprocessor

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        lora: str | None = None,
        session: Sessions = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Return the answers in the order of the prompts, computed with the adapter `lora`, if it
        is named. The blocks of a `session` (of all, or of each) are kept, if anything keeps
        sessions. One invalid prompt fails the call before anything runs; any exception aborts its
        requests. `use_tqdm` is not supported."""
        if use_tqdm:
            raise RequestError("use_tqdm is not supported", "Leave it out.", param="use_tqdm")
        count = len(many := prompts_of(prompts))
        each = zip(many, params_of(sampling_params, count), hints_of(session, count), strict=True)
        return self._run(
            [self._preprocessor.prepare(p, s, lora=lora, session=hint) for p, s, hint in each]
        )

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        lora: str | None = None,
        session: Sessions = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Run `generate` on one conversation or several, rendered by the chat template."""
        conversations = [messages] if is_one_conversation(messages) else messages
        options = {"add_generation_prompt": add_generation_prompt, **(chat_template_kwargs or {})}
        if continue_final_message:
            options["continue_final_message"] = True
        prompts = [
            self._preprocessor.encode_chat(cast(Messages, c), tools=tools, **options)
            for c in conversations
        ]
        each = params_of(sampling_params, len(prompts))
        params = [
            self._preprocessor.chat_params(p or self._preprocessor.default_params, ids)
            for p, ids in zip(each, prompts, strict=True)
        ]
        return self.generate(
            prompts, cast(Params, params), lora=lora, session=session, use_tqdm=use_tqdm
        )

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
    ) -> list[list[float]]:
        """Return an embedding of each prompt. `pooling` makes it of the tokens' final hidden
        states: "last" or "first" token, "mean" or "max" of all, "weighted_mean" (by position), or
        "mean_sqrt_len" (the sum by the square root of their number); `normalize` scales it to
        length 1. By default both are the checkpoint's (`modules.json`), else the last token's,
        normalized. Its `Dense` layers follow any pooling. `dimensions` cuts vectors to this size
        and normalizes them, if the model was trained for it. Before strings is written what the
        checkpoint has under `prompt_name` ("query"), or by default; nothing for an empty one."""
        recipe = self._preprocessor.pooling.recipe(
            pooling=pooling, normalize=normalize, dimensions=dimensions, prompt_name=prompt_name
        )
        params, many = SamplingParams(max_tokens=1), recipe.prompted(prompts_of(prompts))
        parents = [self._preprocessor.prepare(p, params, pooling=recipe.pooling) for p in many]
        builders = [parent.builders[0] for parent in parents]
        self._complete(parents)
        return recipe.finish([b.embedding or () for b in builders])

    def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        instruction: str | None = None,
    ) -> list[float]:
        """Return the score of each pair of strings, a query and a document: one with one, one with
        each of many, or many with as many. A cross-encoder or a model with one label gives its
        logit, or the logit's sigmoid as its checkpoint says; a reranker that judges by its next
        token, to whom `instruction` says what is relevant, a probability; an embedding model the
        cosine of two vectors. Raises RequestError."""
        pairs = paired(text_1, text_2)
        scoring = scoring_of(self._preprocessor, pairs, instruction=instruction)
        parents = [
            self._preprocessor.prepare(p, scoring.params, pooling=scoring.pooling)
            for p in with_seconds(scoring.prompts, scoring.seconds)
        ]
        self._complete(parents)
        results = [result for parent in parents if (result := parent.builders[0].take())]
        return scoring.scores([scoring.numbers(result) for result in results])

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        lora: str | None = None,
        session: str | None = None,
    ) -> Generator[TextDelta, None, None]:
        """Stream the answer, its `n` outputs interleaved. Leaving the loop aborts the request.
        Several streams may be open at once: a step of one advances all."""
        hint = hint_of(session)
        return self._deltas(
            self._preprocessor.prepare(prompt, sampling_params, lora=lora, session=hint)
        )

    def sessions(self, name: str | None = None, *, limit: int = 100) -> list[SessionView]:
        """Return what is kept of sessions, used last first, or of one."""
        with self._turns:
            return self._engine.sessions.views("", name and short_name(name), limit)

    def end_session(self, name: str) -> bool:
        """Forget a session, and what is cached for it alone. Returns whether there was one."""
        with self._turns:
            return bool(self._engine.sessions.end("", short_name(name)))

    def load_lora(self, name: str, ref: str) -> None:
        """Let requests name an adapter: a folder or a hub id. Another adapter of that name is
        replaced; requests that run keep theirs. Raises an InfernoError if it cannot be computed
        beside this model."""
        use = self._preprocessor.adapters.look_up(name, ref)
        builder = reading(use.adapter)
        self._run([ParentRequest(builder.request.id, None, (builder,), None)])
        self._preprocessor.adapters.add(use)

    def unload_lora(self, name: str) -> None:
        """Forget an adapter's name. Raises RequestError if there is none."""
        self._preprocessor.adapters.remove(name)

    @property
    def is_sleeping(self) -> bool:
        """Whether `sleep` was called, and not yet `wake_up`."""
        return not self._awake.is_set()

    @property
    def weight_version(self) -> str:
        """The version of the weights that it computes with now."""
        return self._weights.weight_version

    def sleep(self, level: int = 1, *, mode: str = "wait") -> None:
        """Give back the memory of the cache and, on a GPU, of the weights, which host memory keeps;
        with `level` 2 that of all weights, which `wake_up` reads again. Requests of other threads
        end before it ("wait"), go on after it ("keep"), or end now ("abort"). Requests that come
        meanwhile raise AsleepError."""
        with self._turns:
            self._pause(mode)
            self._sleeper = get_ident()
            self._weights.sleep(level)
            self._awake.clear()

    def wake_up(self, tags: Collection[str] | None = None) -> None:
        """Have the memory again that `sleep` gave back. With the tags `["weights"]` only the
        weights: it sleeps on, until a call with "kv_cache" or without tags."""
        cache = woken_wholly(tags)
        with self._turns:
            self._weights.wake_up(cache=cache)
            if cache:
                self._awake.set()

    def update_weights(
        self,
        weights: Weights,
        *,
        version: str | None = None,
        mode: str = "wait",
    ) -> str:
        """Replace weights: pairs of a checkpoint's name and a tensor, or a safetensors file or
        folder with such, all or some. What the old ones have cached is forgotten. Returns the
        version that outputs carry from now on: `version`, or the number of updates. Requests of
        other threads end before it, go on with the new weights, or end now, as with `sleep`. Raises
        CheckpointError for tensors that do not fit, and has changed nothing."""
        path, temporary = weights_file(weights)
        with self._turns:
            with unless_failed(path, temporary):
                self._pause(mode)
            try:
                return self._weights.update_weights(path, version, temporary=temporary)
            finally:
                if self._weights.asleep:  # not even the old ones could be loaded again
                    self._awake.clear()

    @property
    def _weights(self) -> SleepingEngine:
        return cast(SleepingEngine, self._engine)

    def _pause(self, mode: str) -> None:
        chosen = pause_mode(mode)
        while chosen == "wait" and self._engine.busy:
            self._advance()
        for request_id in self._weights.unfinished if chosen == "abort" else ():
            self._engine.abort(request_id)
            self._take(EngineOutput(request_id, None, FinishReason.ABORT))

    def close(self) -> None:
        """Free the model's memory. The LLM cannot be used afterwards. In a child of fork, whose
        memory is the parent's, it does nothing."""
        if not self._turns.forked:
            with self._turns:
                self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, parents: list[ParentRequest]) -> list[RequestOutput]:
        self._complete(parents)
        return [
            parent.output([d for b in parent.builders if (d := b.take())]) for parent in parents
        ]

    def _complete(self, parents: list[ParentRequest]) -> None:
        builders = [b for parent in parents for b in parent.builders]
        try:
            self._submit(builders)
            while self._step(builders):
                pass
            _raise_first(builders)
        finally:
            self._forget(builders)
        self._rest()

    def _deltas(self, parent: ParentRequest) -> Generator[TextDelta, None, None]:
        try:
            self._submit(parent.builders)
            while True:
                with self._turns:
                    # Together: at a yield the caller, or another thread, may step the engine.
                    finished = all(b.done for b in parent.builders)
                    deltas = [d for b in parent.builders if (d := b.take()) is not None]
                yield from deltas
                _raise_first(parent.builders)
                if finished:
                    break
                self._step(parent.builders)
        finally:
            self._forget(parent.builders)
        self._rest()

    def _rest(self) -> None:
        """Let an engine without requests save what is left of their blocks."""
        with self._turns:
            if self._engine.busy and not (self._live or self.is_sleeping):
                self._advance()

    def _submit(self, builders: Sequence[OutputBuilder]) -> None:
        with self._turns:
            for builder in builders:
                try:
                    self._engine.submit(builder.request)
                except GrammarError as error:
                    spec = builder.request.params.structured_outputs
                    assert spec is not None, "only a grammar can fail to compile"
                    raise refused_grammar(spec, error) from error
                self._live[builder.request.id] = builder

    def _step(self, wanted: Sequence[OutputBuilder]) -> bool:
        """Compute a step for all threads, and return True; False if all that is wanted is complete.
        While the model sleeps, other threads than the one that sent it to sleep wait."""
        while True:
            with self._turns:
                if all(builder.done for builder in wanted):
                    return False
                if self._awake.is_set() or get_ident() == self._sleeper:
                    runs = self._advance() or self._engine.busy or self.is_sleeping
                    assert runs, "requests are pending, but none runs"
                    return True
            self._awake.wait()

    def _advance(self) -> bool:
        """Compute a step. Returns whether there were tokens."""
        for token in (tokens := self._engine.step()):
            self._take(token)
        return bool(tokens)

    def _take(self, token: EngineOutput) -> None:
        if (builder := self._live.get(token.request_id)) is not None:
            builder.push(token)
            if builder.done and not builder.ended:
                self._forget([builder])

    def _forget(self, builders: Sequence[OutputBuilder]) -> None:
        """Stop following these requests, and abort those that the engine has not ended."""
        if self._turns.forked:  # a stream that the parent had begun
            return
        with self._turns:
            for builder in builders:
                if self._live.pop(builder.request.id, None) is not None and not builder.ended:
                    self._engine.abort(builder.request.id)


def _raise_first(builders: Sequence[OutputBuilder]) -> None:
    for builder in builders:
        if builder.error is not None:
            raise builder.error
