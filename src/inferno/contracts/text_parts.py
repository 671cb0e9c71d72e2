"""The language model inside a checkpoint that also reads images or sound: its config, and its
tensors as if they were stored alone. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from inferno.contracts.checkpoints import Checkpoint, RenamedView, TensorInfo
from inferno.errors import CheckpointError

TEXT_PART_OF = "text_part_of"
"""Field of the config of a text part: what the whole is called and which encoder it has, as the
beginning of a sentence."""

_INSIDE, _TEXT = ("thinker_config",), ("text_config", "llm_config", "language_config")
_DECODERS = (
    "language_model.model",
    "model.language_model.model",
    "model.language_model",
    "model.text_model",
    "model.transformer",
    "thinker.model",
    "language_model",
    "model",
)
"""Where checkpoints keep the language model's decoder."""
_HEADS = (
    "language_model.lm_head",
    "model.language_model.lm_head",
    "language_model.output",
    "thinker.lm_head",
    "lm_head",
)
_BESIDE = re.compile(
    r"model\.(sam_model|vision_model|qwen2_model|projector|resampler_model|view_sep[ea]rator"
    r"|image_newline)(\..*)?"
)
"""What some checkpoints keep beside the decoder's own modules, not beside the decoder."""
_OF_THE_WHOLE = (
    "dtype",
    "torch_dtype",
    "quantization_config",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
"""Fields that count for the text part too, where it has none of its own."""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the language model's part of a `config.json`; None if that is all of it."""
    for name in _INSIDE:
        if isinstance(inside := config.get(name), Mapping):
            return text_config(inside)
    for name in _TEXT:
        if isinstance(text := config.get(name), Mapping):
            whole = {k: config[k] for k in _OF_THE_WHOLE if config.get(k) is not None}
            return {**whole, **{k: v for k, v in text.items() if v is not None or k not in whole}}
    if isinstance(config.get("vision_config"), Mapping) and "hidden_size" in config:
        kind = config.get("model_type")  # the first configs of Qwen2-VL: not nested
        return {
            **{k: v for k, v in config.items() if k != "vision_config"},
            "model_type": f"{kind}_text",
        }
    return None


def media_of(config: Mapping[str, Any]) -> list[str]:
    """Return what a model has encoders for: image, audio."""
    inside = (config[name] for name in _INSIDE if isinstance(config.get(name), Mapping))
    fields = {**config, **next(inside, {})}
    kinds = {"image": "vision_config", "audio": "audio_config"}
    return [kind for kind, name in kinds.items() if isinstance(fields.get(name), Mapping)]


def encoder_of(config: Mapping[str, Any]) -> str:
    """Return what a model has beside its text part: "an image encoder"."""
    media = media_of(config)
    return f"an {' and an '.join(media)} encoder" if media else "parts beside its text part"


@frozen(eq=False)
class TextPart(RenamedView):
    """The language model of a checkpoint, under the names of one stored alone."""

    names: Mapping[str, str] = field(init=False)

    @names.default
    def _find(self) -> dict[str, str]:
        stored = self.checkpoint.tensors
        inside = [p for p in _DECODERS if any(_holds(stored, f"{p}.{n}") for n in _EMBEDDINGS)]
        places = dict.fromkeys(inside[:1], "model")
        if not inside and all(_holds(stored, module) for module in _MODULES):
            places = {module: f"model.{module}" for module in _MODULES}
        if not places:
            raise CheckpointError(
                "the checkpoint has no language model where one is expected: there is no "
                f"embed_tokens.weight under {', '.join(_DECODERS)}",
                "Check that all files of the model are here.",
            )
        places |= {head: "lm_head" for head in _HEADS if _holds(stored, head)}
        return {
            f"{place}{name.removeprefix(prefix)}": name
            for prefix, place in places.items()
            for name in stored
            if name.startswith(f"{prefix}.") and not _BESIDE.fullmatch(name)
        }

    @property
    def config(self) -> Mapping[str, Any]:
        whole = self.checkpoint.config
        text = text_config(whole) or whole
        classes = list(whole.get("architectures") or [str(whole.get("model_type"))])
        stored = any(name.startswith("lm_head.") for name in self.names)
        return {
            **text,
            "architectures": classes,
            "tie_word_embeddings": not stored,
            TEXT_PART_OF: f"{classes[0]} has {encoder_of(whole)}",
        }

    @property
    def left_out(self) -> Mapping[str, TensorInfo]:
        """The other tensors: of encoders and projectors, by their stored names."""
        read = set(self.names.values())
        return {n: info for n, info in self.checkpoint.tensors.items() if n not in read}


@frozen(eq=False)
class SeeingPart(TextPart):
    """The same with the modules of an encoder, of images or of audio."""

    modules: Mapping[str, tuple[str, ...]] = field(kw_only=True)
    """The path of each module of the encoder, and where checkpoints keep it."""
    renamed: Mapping[str, str] = field(kw_only=True, factory=dict)
    """Parts of names below these paths that are others in the model: the encoder's matrices are not
    called as those that ranks divide, as each rank holds it whole."""
    names: Mapping[str, str] = field(init=False)

    @names.default
    def _with_encoder(self) -> dict[str, str]:
        stored, pairs = self.checkpoint.tensors, TextPart._find(self)
        for path, places in self.modules.items():
            # `inferno convert` writes a quantized text model beside it under the model's own paths.
            place = next((each for each in (*places, path) if _holds(stored, each)), None)
            if place is None:
                raise CheckpointError(
                    f"the checkpoint has no such encoder: there is nothing under {places[0]}",
                    "Check that all files of the model are here.",
                )
            # What follows counts: the decoder itself may be kept under the first part of a path.
            pairs = {name: theirs for name, theirs in pairs.items() if not _in(theirs, place)}
            inside = (name for name in stored if _in(name, place))
            pairs |= {f"{path}{self._renamed(name.removeprefix(place))}": name for name in inside}
        return pairs

    def _renamed(self, name: str) -> str:
        return ".".join(self.renamed.get(part, part) for part in name.split("."))

    @property
    def config(self) -> Mapping[str, Any]:
        whole, text = self.checkpoint.config, TextPart.config.fget(self)  # type: ignore[attr-defined]
        fields = {k: v for k, v in whole.items() if k not in _TEXT}
        return {**fields, **{k: v for k, v in text.items() if k != TEXT_PART_OF}}


_EMBEDDINGS = ("embed_tokens", "tok_embeddings", "wte")
_MODULES = ("embed_tokens", "layers", "norm")
"""A decoder's modules, which some checkpoints have under no name, an encoder's beside them."""


def _holds(stored: Mapping[str, TensorInfo], module: str) -> bool:
    return any(_in(name, module) for name in stored)


def _in(name: str, module: str) -> bool:
    return name.startswith(f"{module}.")


def text_part(checkpoint: Checkpoint) -> TextPart:
    """View the language model of a checkpoint. An `Architecture.adapt`. Raises CheckpointError if
    it is not where such checkpoints have it."""
    return TextPart(checkpoint)
