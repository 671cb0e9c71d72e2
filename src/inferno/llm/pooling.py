"""How a checkpoint turns strings into embeddings or judges pairs of them: read from the files of
sentence-transformers (`modules.json`), else from its architecture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from attrs import frozen

from inferno.contracts import Reranker, TextAssets
from inferno.errors import RequestError
from inferno.llm.dense import Dense
from inferno.llm.prompts import Prompt, unwrapped
from inferno.request.requests import Pooling, Poolings, Reduction
from inferno.text import ChatTemplate, Tokenizer

_MODES: Mapping[str, Pooling] = {
    "lasttoken": "last",
    "cls": "first",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "max": "max",
}
"""sentence-transformers' `pooling_mode`."""
_SWITCHES: Mapping[str, str] = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}
"""`pooling_mode_*` of older files, in the order in which the vectors of several are joined."""
_MEAN = "the checkpoint has no modules.json: the mean of the tokens' states, normalized"


@frozen(kw_only=True)
class Judge:
    """A causal model that judges whether a document answers a query by its next token."""

    template: ChatTemplate
    """Renders the messages of the roles system (the instruction, optional), query, document."""
    yes: int
    no: int
    """Token ids."""
    instruction: str = ""


@frozen(kw_only=True)
class Classifier:
    """A decoder with a head for labels. With one label it is a cross-encoder: it scores pairs of
    strings."""

    num_labels: int
    sigmoid: bool = True
    """Whether the one label's score is its logit's sigmoid; else it is the logit."""
    template: ChatTemplate | None = None
    """Renders a pair, as a `Judge`'s; None: the tokenizer joins the two strings."""
    instruction: str = ""


@frozen(kw_only=True)
class Recipe:
    """How the embeddings of one request are made."""

    pooling: Poolings
    """The engine's part."""
    layers: tuple[Dense, ...]
    """Follow the pooling."""
    normalize: bool
    size: int | None
    """To which vectors are cut; None for their own."""
    prompt: str = ""
    """What is written before each string."""

    @property
    def pooled_by(self) -> str:
        """The pooling's name in answers."""
        return pooling_name(self.pooling)

    def prompted(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Return the prompts, strings with what is written before them."""
        return [self._prompted(prompt) for prompt in prompts] if self.prompt else list(prompts)

    def _prompted(self, prompt: Prompt) -> Prompt:
        text = unwrapped(prompt) if isinstance(prompt, Mapping) else prompt
        return self.prompt + text if isinstance(text, str) else prompt

    def finish(self, vectors: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return embeddings of pooled vectors: cut and normalized. A cut one always is."""
        if self.layers and vectors:
            import numpy as np

            values = np.asarray(vectors, np.float64)
            for layer in self.layers:
                values = layer(values)
            vectors = values.astype(np.float32).tolist()
        return [self._finished(vector) for vector in vectors]

    def _finished(self, vector: Sequence[float]) -> list[float]:
        cut = list(vector if self.size is None else vector[: self.size])
        if not self.normalize and len(cut) == len(vector):
            return cut
        length = math.hypot(*cut)
        return [x / length for x in cut] if length else cut


@frozen(kw_only=True)
class PoolingConfig:
    """How embeddings are made, and pairs are judged."""

    pooling: Poolings = "last"
    layers: tuple[Dense, ...] = ()
    normalize: bool = True
    is_embedder: bool = False
    """Whether the checkpoint says that it was trained for embeddings."""
    reason: str = "the checkpoint has no modules.json: the last token's state, normalized"
    """Where the pooling comes from."""
    unsupported: str = ""
    """Why no embeddings can be made, if so."""
    size: int | None = None
    """The vectors' number of elements, if the checkpoint says it."""
    dimensions: tuple[int, ...] | None = None
    """Sizes to which vectors may be cut (Matryoshka); empty for any size, None for none."""
    prompts: Mapping[str, str] = {}
    """By kind of string ("query", "document"): what is written before it."""
    default_prompt: str = ""
    """Which of them strings of no kind have; empty: none."""
    judge: Judge | None = None
    classifier: Classifier | None = None
    generates: bool = True
    """Whether the model continues prompts: encoders do not."""

    @classmethod
    def of(
        cls,
        assets: TextAssets,
        config: Mapping[str, Any],
        tokenizer: Tokenizer | None,
        template: ChatTemplate,
        reranker: Reranker | None = None,
        *,
        generates: bool = True,
    ) -> PoolingConfig:
        """Read a checkpoint's. `reranker` is its architecture's, for checkpoints without one of
        their own. A model that does not generate has the mean of all states by default."""
        modules = {_kind(module): module for module in assets.modules}
        judge = None
        if "LogitScore" in modules:
            instruction = assets.prompts.get("query", "")
            judge = _judge(modules["LogitScore"].get("config", {}), template, instruction)
        elif reranker is not None and tokenizer is not None:
            judge = _judge_of_family(reranker, tokenizer)
        classifier = _classifier(config, template, assets.prompts.get("query", ""))
        dimensions, size = _matryoshka(config), config.get("hidden_size")
        size = size if isinstance(size, int) else None
        if "Pooling" not in modules:
            known = not modules or "LogitScore" in modules
            of_encoder: dict[str, Any] = {} if generates else {"pooling": "mean", "reason": _MEAN}
            return cls(
                **of_encoder,
                generates=generates,
                size=size,
                dimensions=dimensions,
                judge=judge,
                classifier=classifier,
                unsupported="" if known else f"its modules.json has {', '.join(modules)}",
            )
        settings = modules["Pooling"].get("config", {})
        modes = _modes(settings)
        poolings = tuple(_MODES[mode] for mode in modes if mode in _MODES)
        size = None if size is None else size * max(1, len(poolings))
        if poolings and len(poolings) == len(modes):
            layers, unsupported = _layers(assets.modules, size)
        else:
            layers, unsupported = (), f"its pooling is {' and '.join(modes) or 'not given'}"
        if not (includes := settings.get("include_prompt", True)) and assets.default_prompt:
            unsupported = unsupported or "its pooling leaves out the tokens of its prompts"
        return cls(
            pooling=poolings if len(poolings) > 1 else poolings[0] if poolings else "last",
            layers=layers,
            normalize="Normalize" in modules,
            is_embedder=True,
            reason="the checkpoint's modules.json",
            unsupported=unsupported,
            size=layers[-1].num_outputs if layers else size,
            dimensions=dimensions,
            prompts=assets.prompts if includes else {},
            default_prompt=assets.default_prompt if includes else "",
            judge=judge,
            generates=generates,
        )

    def check_head(self, wanted: Reduction | None) -> None:
        """Raise RequestError unless the model has the head for a request: None is for one that is
        continued."""
        if wanted is None and self.classifier is not None:
            raise RequestError(
                f"this model classifies, with {self.classifier.num_labels} labels: it generates no "
                "text",
                "Use /v1/rerank or /v1/score, or serve a model that generates.",
                param="model",
            )
        if wanted is None and not self.generates:
            raise RequestError(
                "this model is an encoder: it generates no text",
                "Ask for embeddings (/v1/embeddings, `LLM.embed`), or serve another model.",
                param="model",
            )
        if wanted == "score" and self.classifier is None:
            raise RequestError(
                "this model has no head that classifies", "Use an embedding.", param="pooling"
            )

    def recipe(
        self,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
    ) -> Recipe:
        """Return how embeddings are made with these options of a request; None is the checkpoint's,
        and an empty `prompt_name` none.
        A named pooling replaces the checkpoint's and its layers stay; if they or others are not
        supported, it is one of the decoder's states without them. Layers that take the vectors of
        several poolings allow no other. Raises RequestError."""
        names = get_args(Pooling)
        if self.unsupported and pooling is None:
            raise RequestError(
                f"this model's embeddings are not supported: {self.unsupported}",
                f"Name a pooling ({', '.join(names)}) if you want one of the decoder's states.",
                param="model",
            )
        if pooling is not None and pooling not in names:
            raise RequestError(
                f"invalid pooling {pooling[:40]!r}", f"Use {', '.join(names)}.", param="pooling"
            )
        size = self.size
        if pooling is not None and isinstance(self.pooling, tuple):
            if self.layers:
                raise RequestError(
                    f"pooling is {pooling}, and this model's Dense layers take the joined vectors "
                    f"of {pooling_name(self.pooling)}",
                    "Leave pooling out.",
                    param="pooling",
                )
            size = None if size is None else size // len(self.pooling)
        if dimensions is not None and dimensions != size:
            _check_dimensions(self.dimensions, dimensions, size)
        return Recipe(
            pooling=self.pooling if pooling is None else cast(Pooling, pooling),
            layers=self.layers,
            normalize=self.normalize if normalize is None else normalize,
            size=dimensions,
            prompt=self._prompt(self.default_prompt if prompt_name is None else prompt_name),
        )

    def _prompt(self, name: str) -> str:
        """Return what is written before strings of a kind; nothing for an empty name. Raises
        RequestError."""
        if name and name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise RequestError(
                f"this model has no prompt {name[:80]!r}",
                f"It has {known} (config_sentence_transformers.json); or write it yourself.",
                param="prompt_name",
            )
        return self.prompts.get(name, "") if name else ""


def pooling_name(pooling: Poolings) -> str:
    """Return its name in answers: "mean", or "first+mean" for two."""
    return pooling if isinstance(pooling, str) else "+".join(pooling)


def _layers(
    modules: Sequence[Mapping[str, Any]], size: int | None
) -> tuple[tuple[Dense, ...], str]:
    """Return what follows the pooling of vectors of `size`, and why it cannot be computed."""
    kinds = [_kind(module) for module in modules if _kind(module) != "Dropout"]
    if unknown := set(kinds) - {"Transformer", "Pooling", "Dense", "Normalize"}:
        return (), f"its modules.json has {', '.join(sorted(unknown))}"
    denses = [module for module in modules if _kind(module) == "Dense"]
    order = ["Transformer", "Pooling", *["Dense"] * len(denses), "Normalize"]
    if kinds not in (order, order[:-1], order[1:], order[1:-1]):
        return (), f"its modules.json has the order {', '.join(kinds)}"
    for normalize in [module for module in modules if _kind(module) == "Normalize"]:
        named = normalize.get("config", {}).get("module_input_name", "sentence_embedding")
        if named != "sentence_embedding":
            return (), f"its Normalize is for {named}"
    layers: list[Dense] = []
    for module in denses:
        layer = Dense.of(module)
        if isinstance(layer, str):
            return (), layer
        if size is not None and layer.num_inputs != size:
            return (), f"its {module.get('path')} takes {layer.num_inputs} numbers, not {size}"
        layers.append(layer)
        size = layer.num_outputs
    return tuple(layers), ""


def _check_dimensions(known: tuple[int, ...] | None, wanted: int, size: int | None) -> None:
    if known is None:
        raise RequestError(
            "dimensions is not supported here",
            "This model was not trained for shorter vectors (config.json has no is_matryoshka and "
            "no matryoshka_dimensions): leave it out, or cut the vectors yourself.",
            param="dimensions",
            code="unsupported_parameter",
        )
    if known and wanted not in known:
        raise RequestError(
            f"dimensions is {wanted}",
            f"Use one of {', '.join(map(str, known))}.",
            param="dimensions",
        )
    if wanted < 1 or (size is not None and wanted > size):
        raise RequestError(
            f"dimensions is {wanted}", f"Use 1 to {size or 'its size'}.", param="dimensions"
        )


def _kind(module: Mapping[str, Any]) -> str:
    return str(module.get("type", "")).rpartition(".")[2]


def _modes(settings: Mapping[str, Any]) -> list[str]:
    """Return the pooling modes: `pooling_mode`, or in older files one switch for each."""
    mode = settings.get("pooling_mode")
    if mode is not None:
        return [mode] if isinstance(mode, str) else [str(each) for each in mode]
    prefix = "pooling_mode_"
    on = [k.removeprefix(prefix) for k, v in settings.items() if k.startswith(prefix) and v is True]
    known = [mode for switch, mode in _SWITCHES.items() if switch in on]
    return [*known, *(each for each in on if each not in _SWITCHES)]


def _matryoshka(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    sizes = config.get("matryoshka_dimensions")
    if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes):
        return tuple(sizes)
    return () if config.get("is_matryoshka") is True else None


def _classifier(
    config: Mapping[str, Any], template: ChatTemplate, instruction: str
) -> Classifier | None:
    [name, *_] = config.get("architectures") or [""]
    if not str(name).endswith("ForSequenceClassification"):
        return None
    trained = config.get("sentence_transformers")
    trained = trained if isinstance(trained, Mapping) else {}
    old = config.get("sbert_ce_default_activation_function")
    activation = str(trained.get("activation_fn") or old or "")
    labels = config.get("num_labels")
    source = template.source() if template.exists else ""
    renders = "query" in source and "document" in source
    return Classifier(
        num_labels=labels if isinstance(labels, int) else 0,
        sigmoid=not activation.endswith("Identity"),
        template=template if renders else None,
        instruction=instruction,
    )


def _judge(settings: Mapping[str, Any], template: ChatTemplate, instruction: str) -> Judge | None:
    yes, no = settings.get("true_token_id"), settings.get("false_token_id")
    if not isinstance(yes, int) or not isinstance(no, int) or not template.exists:
        return None
    return Judge(template=template, yes=yes, no=no, instruction=instruction)


def _judge_of_family(reranker: Reranker, tokenizer: Tokenizer) -> Judge | None:
    yes, no = tokenizer.token_id(reranker.yes), tokenizer.token_id(reranker.no)
    if yes is None or no is None:
        return None
    return Judge(
        template=ChatTemplate({"default": reranker.template}),
        yes=yes,
        no=no,
        instruction=reranker.instruction,
    )
