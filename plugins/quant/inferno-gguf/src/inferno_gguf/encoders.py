"""Files with the encoder of images of a model whose text part is in another: llama.cpp's
`mmproj-*.gguf`. The dialects of installed architectures (`contracts.EncoderDialect`) name their
tensors; nothing here knows a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import field, frozen

from inferno.contracts import (
    Architecture,
    CheckpointView,
    EncoderDialect,
    EncoderFile,
    TensorInfo,
    TextAssets,
    encoders_beside,
    is_encoder_file,
)
from inferno.errors import CheckpointError
from inferno_gguf.checkpoint import GgufCheckpoint
from inferno_gguf.config import shortest
from inferno_gguf.encoder_tensors import EncoderTensors
from inferno_gguf.files import first_of
from inferno_gguf.reader import DAMAGED, GgufFile

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURE = "clip"
"""`general.architecture` of all such files."""
WIDTH, LAYERS = "clip.vision.projection_dim", "clip.vision.block_count"
NO_IMAGES = "Name the encoder of this model, or run it without images: --no-mmproj."
_TOKENS = "tokenizer.ggml.tokens"


@frozen(eq=False)
class SeeingCheckpoint(CheckpointView):
    """A model whose text and encoder are in two files, as the original checkpoint has both."""

    encoder: EncoderTensors
    config: Mapping[str, Any]
    processor: Mapping[str, Any]
    notes: tuple[str, ...]
    """What the plan says of values that the encoder's file lacks."""
    tensors: Mapping[str, TensorInfo] = field(init=False)

    @tensors.default
    def _both(self) -> dict[str, TensorInfo]:
        return {**self.checkpoint.tensors, **self.encoder.tensors}

    @property
    def files(self) -> tuple[Path, ...]:
        return (*super().files, self.encoder.file.path)

    @property
    def license(self) -> str:
        """The text model's licence as its file names it; empty if it does not."""
        return str(getattr(self.checkpoint, "license", ""))

    def text(self) -> TextAssets:
        return attrs.evolve(self.checkpoint.text(), image_processor=self.processor)

    def read(self, name: str) -> Tensor:
        inside = name in self.encoder.tensors
        return self.encoder.read(name) if inside else self.checkpoint.read(name)

    def close(self) -> None:
        super().close()
        self.encoder.close()


def encoders(path: Path, architectures: Sequence[Architecture]) -> list[EncoderFile]:
    """Return the encoders beside a model's file: a `CheckpointFormat.encoders`."""
    first = first_of(path).absolute()
    folder, above = first.parent, first.parent.parent
    near = [p for each in (folder, above) for p in each.glob("*.gguf") if is_encoder_file(p.name)]
    names = (p.relative_to(above).as_posix() for p in near if p.is_file())
    files = encoders_beside(first.relative_to(above).as_posix(), names)
    text = GgufFile.open(first) if files else None
    return [_judged(above / name, text, architectures) for name in files if text is not None]


def _judged(path: Path, text: GgufFile, architectures: Sequence[Architecture]) -> EncoderFile:
    try:
        _find(GgufFile.open(path), text, architectures)
    except Unfit as unfit:
        return EncoderFile(path, unfit.cause)
    except CheckpointError:
        pass  # `join` says what is wrong with it
    return EncoderFile(path)


class Unfit(CheckpointError):
    """An encoder of another model."""


def join(
    checkpoint: GgufCheckpoint, path: Path, architectures: Sequence[Architecture]
) -> SeeingCheckpoint:
    """Return a model with the encoder in the file: a `CheckpointFormat.join`."""
    try:
        return _joined(checkpoint, path, architectures)
    except CheckpointError as error:
        if "--no-mmproj" not in error.remedy:
            error.remedy = f"{error.remedy} Or run it without images: --no-mmproj."
        raise


def _joined(
    checkpoint: GgufCheckpoint, path: Path, architectures: Sequence[Architecture]
) -> SeeingCheckpoint:
    file, text = GgufFile.open(path), checkpoint.first_file
    architecture, dialect = _find(file, text, architectures)
    fields = dict(_fields(file, text, dialect))
    settings = {k: v for k, v in checkpoint.config.items() if k != "architectures"}
    try:
        whole = dialect.config(settings, fields)
        processor = dialect.processor(fields)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path.name}: no encoder of {architecture.name} has its sizes: {error!r}", DAMAGED
        ) from error
    return SeeingCheckpoint(
        checkpoint,
        EncoderTensors.of(file, dialect),
        {"architectures": [architecture.name], **whole},
        processor,
        _notes(file, dialect),
    )


def _notes(file: GgufFile, dialect: EncoderDialect) -> tuple[str, ...]:
    keys = ((dialect.fields[name], value) for name, value in dialect.assumed.items())
    lacking = [f"{key} ({value})" for key, value in keys if key not in file.metadata]
    note = f"{file.path.name} lacks {' and '.join(lacking)}: assumed as in the family's models"
    return (note,) if lacking else ()


def _find(
    file: GgufFile, text: GgufFile, architectures: Sequence[Architecture]
) -> tuple[Architecture, EncoderDialect]:
    """Return what sees with an encoder and that text model. Raises Unfit."""
    name = file.metadata.get("general.architecture")
    if name != ARCHITECTURE:
        raise Unfit(f"{file.path.name} holds no encoder of images, but {name!r}", NO_IMAGES)
    kind = file.metadata.get("clip.vision.projector_type")
    kind = file.metadata.get("clip.projector_type") if kind is None else kind
    family = text.metadata.get("general.architecture")
    known = [(a, a.encoders["gguf"]) for a in architectures if "gguf" in a.encoders]
    alike = [(a, dialect) for a, dialect in known if dialect.kind == kind]
    if not alike:
        installed = ", ".join(sorted({dialect.kind for _, dialect in known})) or "none"
        raise Unfit(
            f"{file.path.name}: no installed architecture has encoders of the kind {kind!r}",
            f"Installed: {installed}. Or run it without images: --no-mmproj.",
        )
    matches = [(a, dialect) for a, dialect in alike if family in dialect.texts]
    if not matches:
        texts = ", ".join(sorted({each for _, dialect in alike for each in dialect.texts}))
        raise Unfit(
            f"{file.path.name} is an encoder for {texts}, and {text.path.name} is {family!r}",
            NO_IMAGES,
        )
    architecture, dialect = matches[0]
    width, wanted = file.metadata.get(WIDTH), text.metadata.get(f"{family}.embedding_length")
    if width != wanted:
        raise Unfit(
            f"{file.path.name} makes embeddings of {width} numbers, and tokens of "
            f"{text.path.name} have {wanted}",
            NO_IMAGES,
        )
    if _TOKENS in text.metadata and not _tokens(text, dialect):
        raise Unfit(
            f"{text.path.name} has no token for images ({', '.join(dialect.tokens.values())}), as "
            f"models of {file.path.name} have",
            NO_IMAGES,
        )
    return architecture, dialect


def _fields(file: GgufFile, text: GgufFile, dialect: EncoderDialect) -> Iterator[tuple[str, Any]]:
    for name, key in dialect.fields.items():
        if (value := file.metadata.get(key)) is None:
            if name in dialect.assumed:
                yield name, dialect.assumed[name]
            continue
        if key == LAYERS and not (type(value) is int and 0 < value <= len(file.tensors)):
            raise CheckpointError(
                f"{file.path.name}: {str(value)[:40]} layers of {len(file.tensors)} tensors",
                DAMAGED,
            )
        yield name, [_plain(v) for v in value] if isinstance(value, list) else _plain(value)
    for name, tensor in dialect.present.items():
        yield name, tensor in file.tensors
    for name, (tensor, axis) in dialect.shapes.items():
        shape = file.tensors[tensor].shape if tensor in file.tensors else ()
        if axis < len(shape):
            yield name, shape[axis]
    yield from _tokens(text, dialect).items()


def _tokens(text: GgufFile, dialect: EncoderDialect) -> dict[str, int]:
    """Return the ids of the dialect's tokens: of those that the text model has."""
    tokens = text.metadata.get(_TOKENS)
    places = {token: i for i, token in enumerate(tokens)} if isinstance(tokens, list) else {}
    return {name: places[t] for name, t in dialect.tokens.items() if t in places}


def _plain(value: Any) -> Any:
    return shortest(value) if isinstance(value, float) else value
