"""How a checkpoint turns strings into embeddings or judges pairs of them: read from the files of
sentence-transformers (`modules.json`), else from its architecture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from inferno.contracts import Reranker, TextAssets
from inferno.requests import Pooling
from inferno.text import ChatTemplate, Tokenizer

_MODES: Mapping[str, Pooling] = {
    "lasttoken": "last",
    "cls": "first",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean",  # the same direction: told apart by the length only
    "max": "max",
}
"""sentence-transformers' `pooling_mode`."""


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
class PoolingConfig:
    """How embeddings are made, and pairs are judged."""

    pooling: Pooling = "last"
    normalize: bool = True
    is_embedder: bool = False
    """Whether the checkpoint says that it was trained for embeddings."""
    reason: str = "the checkpoint has no modules.json: the last token's state, normalized"
    """Where the pooling comes from."""
    unsupported: str = ""
    """Why no embeddings can be made, if so."""
    size: int | None = None
    """The vectors' number of elements, if config.json says it."""
    dimensions: tuple[int, ...] | None = None
    """Sizes to which vectors may be cut (Matryoshka); empty for any size, None for none."""
    prompts: Mapping[str, str] = {}
    """By kind of string, "query" and "document": what is written before it."""
    judge: Judge | None = None
    classifier: Classifier | None = None

    @classmethod
    def of(
        cls,
        assets: TextAssets,
        config: Mapping[str, Any],
        tokenizer: Tokenizer | None,
        template: ChatTemplate,
        reranker: Reranker | None = None,
    ) -> PoolingConfig:
        """Read a checkpoint's. `reranker` is its architecture's, for checkpoints without one of
        their own."""
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
        prompts = {k: p for k, p in assets.prompts.items() if k in ("query", "document")}
        if "Pooling" not in modules:
            return cls(size=size, dimensions=dimensions, judge=judge, classifier=classifier)
        settings = modules["Pooling"].get("config", {})
        modes = _modes(settings)
        unknown = modules.keys() - {"Transformer", "Pooling", "Normalize"}
        unsupported = ""
        if unknown:
            unsupported = f"its modules.json has {', '.join(sorted(unknown))}"
        elif len(modes) != 1 or modes[0] not in _MODES:
            unsupported = f"its pooling is {' and '.join(modes) or 'not given'}"
        return cls(
            pooling=_MODES.get(modes[0], "last") if modes else "last",
            normalize="Normalize" in modules,
            is_embedder=True,
            reason="the checkpoint's modules.json",
            unsupported=unsupported,
            size=size,
            dimensions=dimensions,
            prompts=prompts if settings.get("include_prompt", True) else {},
            judge=judge,
        )

    def finish(
        self, vector: Sequence[float], *, normalize: bool | None = None, size: int | None = None
    ) -> list[float]:
        """Return the pooled vector cut to `size` and normalized. A cut one always is."""
        cut = list(vector if size is None else vector[:size])
        wanted = self.normalize if normalize is None else normalize
        if not wanted and len(cut) == len(vector):
            return cut
        length = math.hypot(*cut)
        return [x / length for x in cut] if length else cut


def _kind(module: Mapping[str, Any]) -> str:
    return str(module.get("type", "")).rpartition(".")[2]


def _modes(settings: Mapping[str, Any]) -> list[str]:
    """Return the pooling modes: `pooling_mode`, or in older files one switch for each."""
    mode = settings.get("pooling_mode")
    if mode is not None:
        return [mode] if isinstance(mode, str) else [str(each) for each in mode]
    prefix = "pooling_mode_"
    on = [k.removeprefix(prefix) for k, v in settings.items() if k.startswith(prefix) and v is True]
    return [{"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}.get(k, k) for k in on]


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
