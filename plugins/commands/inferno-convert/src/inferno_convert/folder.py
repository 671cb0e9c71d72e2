"""A Hugging Face folder: safetensors, config and tokenizer, with linear layers dense or as an
encoding stores them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.contracts import (
    COMPUTE_DTYPES,
    DTYPE_BYTES,
    CheckpointView,
    Encoding,
    Output,
    Piece,
    TensorInfo,
    WriteOptions,
)
from inferno.errors import InfernoError, UnsupportedError
from inferno.plan.dtypes import declared_dtype, stored_dtype
from inferno.plan.stored import adapted
from inferno.weights.pairing import checkpoint_path
from inferno_convert.safetensors import arranged
from inferno_convert.source import DenseView, Source
from inferno_convert.texts import text_files

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 1 << 24
"""Values of a dense matrix that are converted at once."""


@frozen(eq=False)
class Encoded:
    """A matrix that is stored in parts."""

    path: str
    parts: Mapping[str, TensorInfo]

    def names(self) -> dict[str, TensorInfo]:
        return {f"{self.path}.{part}": info for part, info in self.parts.items()}


@frozen(eq=False)
class Folder:
    """What a folder will hold."""

    source: Source
    view: DenseView
    dtype: str
    """Of matrices that are dequantized, and of all if the user asked for it."""
    cast: bool
    """Whether plain tensors are converted to it."""
    encoded: Mapping[str, Encoded]
    """By the name of the dense tensor."""
    dense: tuple[str, ...]
    """Linear modules that an encoding does not store."""
    notes: tuple[str, ...]

    @classmethod
    def of(cls, source: Source, options: WriteOptions, encoding: Encoding | None) -> Folder:
        """Decide how each tensor is stored. Raises UnsupportedError."""
        view = _view(source, encoding)
        encoded, dense = ({}, {}) if encoding is None else _divided(source, view, encoding)
        made = cls(
            source=source,
            view=view,
            dtype=options.dtype
            or declared_dtype(source.checkpoint)
            or stored_dtype(source.checkpoint),
            cast=options.dtype is not None,
            encoded=encoded,
            dense=(*dense, *source_heads(source)),
            notes=tuple(_notes(source, view, dense)),
        )
        if view.checkpoint is not source.checkpoint:
            _check_names(source, made.headers(), made.config(encoding))
        return made

    def info(self, name: str) -> TensorInfo:
        """Return the header with which a dense tensor is stored."""
        info = self.view.tensors[name]
        floats = info.dtype in (*COMPUTE_DTYPES, "float64")
        plain = name not in self.view.quantized
        if not floats or (plain and (not self.cast or _stays(info))):
            return info
        return TensorInfo(self.dtype, info.shape, math.prod(info.shape) * DTYPE_BYTES[self.dtype])

    def headers(self) -> dict[str, TensorInfo]:
        """Return all headers of the result, in the order in which they are stored."""
        by_name: dict[str, TensorInfo] = {}
        for name in self.view.tensors:
            if name in self.encoded:
                by_name |= self.encoded[name].names()
            else:
                by_name[name] = self.info(name)
        return by_name

    def read(self, name: str) -> Iterator[tuple[str, Tensor]]:
        """Yield a dense tensor in parts, as it is stored."""
        import torch

        info, dtype = self.view.tensors[name], getattr(torch, self.info(name).dtype)
        if name not in self.view.quantized or len(info.shape) < 2:
            yield name, self.view.read(name).to(dtype)
            return
        step = max(1, ROWS // max(1, info.shape[1]))
        for start in range(0, info.shape[0], step):
            yield name, self.view.read(name, start, start + step).to(dtype)

    def encode(self, name: str, encoding: Encoding) -> Iterator[tuple[str, Tensor]]:
        """Yield a matrix's parts, as the encoding makes them from the values alone."""
        path = self.encoded[name].path
        parts = encoding.encode(path, self.view.read(name).float(), None)
        yield from ((f"{path}.{part}", tensor) for part, tensor in parts.items())

    def config(self, encoding: Encoding | None) -> dict[str, Any]:
        """Return `config.json`."""
        # A model with an encoder has parts, which only its whole config tells apart.
        whole = self.source.architecture.has_encoder
        config = {**(self.source.checkpoint.config if whole else self.view.config)}
        config.pop("quantization_config", None)
        key = "torch_dtype" if "torch_dtype" in config else "dtype"
        config[key] = self.dtype
        if encoding is not None:
            config["quantization_config"] = dict(encoding.config(self.dense))
        return config

    def output(
        self,
        options: WriteOptions,
        encoding: Encoding | None,
        own: Sequence[Piece] = (),
    ) -> Output:
        """Return the output. `own` are pieces of tensors that are not made each alone."""
        files, index = arranged(self.headers(), options.split)
        elsewhere = {name for piece in own for name in piece.tensors}
        rest: list[Piece] = []
        for name in self.view.tensors:
            if name in self.encoded and encoding is not None:
                names = tuple(self.encoded[name].names())
                if not elsewhere.issuperset(names):
                    make = partial(self.encode, name, encoding)
                    rest.append(Piece(tensors=names, make=make))
            elif name not in elsewhere:
                rest.append(Piece(tensors=(name,), make=partial(self.read, name)))
        texts = text_files(self.source.path, self.view.text(), self.config(encoding))
        return Output(files=files, pieces=[*rest, *own], texts=texts | index, notes=self.notes)


def _view(source: Source, encoding: Encoding | None) -> DenseView:
    """Return the tensors as they are stored, if that can be read and written. Raises
    UnsupportedError."""
    if encoding is None:
        try:
            return source.as_stored()
        except UnsupportedError:  # experts that are quantized as one tensor
            if source.seen_by_model is source.checkpoint:
                raise
    return source.by_modules()


@frozen(eq=False)
class _Written(CheckpointView):
    """The headers of what will be written."""

    tensors: Mapping[str, TensorInfo]
    written: Mapping[str, Any]

    @property
    def config(self) -> Mapping[str, Any]:
        return self.written

    def read(self, name: str) -> Tensor:
        raise AssertionError(f"names follow from headers, not from the values of {name}")


def _check_names(
    source: Source, headers: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> None:
    """Raise UnsupportedError if the model's plugin would not find the tensors that are written."""
    result = _Written(source.checkpoint, headers, config)
    try:
        readable = adapted(result, source.architecture).tensors
    except InfernoError as error:
        raise UnsupportedError(f"the result could not be read: {error.cause}", _OTHERS) from error
    if missing := headers.keys() - readable.keys():
        raise UnsupportedError(
            f"the result could not be read: {source.architecture.name} has other names than the "
            f"checkpoint, and would not find {min(missing)}",
            _OTHERS,
        )


_OTHERS = "Convert to safetensors or GGUF instead."


def _divided(
    source: Source, view: DenseView, encoding: Encoding
) -> tuple[dict[str, Encoded], dict[str, str]]:
    """Return the matrices that the encoding stores, by the name of the dense tensor; and why others
    stay dense, by path. Raises UnsupportedError."""
    encoded: dict[str, Encoded] = {}
    dense: dict[str, str] = {}
    for path, shape in linear_shapes(source, view).items():
        answer = encoding.parts(path, shape)
        if isinstance(answer, str):
            dense[path] = answer
        else:
            encoded[f"{path}.weight"] = Encoded(path, answer)
    if not encoded:
        raise UnsupportedError(
            f"no matrix can be quantized: {next(iter(dense.values()), 'none is linear')}",
            "Choose another target or another --group-size.",
        )
    return encoded, dense


def _notes(source: Source, view: DenseView, dense: Mapping[str, str]) -> Iterator[str]:
    """Yield what the user should know of the result."""
    for reason in dict.fromkeys(dense.values()):
        count = sum(cause == reason for cause in dense.values())
        yield f"{count} {'matrix stays' if count == 1 else 'matrices stay'} dense: {reason}"
    if view.checkpoint is not source.checkpoint:
        yield (
            "tensors have the names of inferno's modules, experts are stored one by one, and what "
            "the model does not read is left out: other libraries may not read the result"
        )


def _stays(info: TensorInfo) -> bool:
    """Whether a tensor keeps its dtype: norms and tables that are stored in float32."""
    return info.dtype == "float32" and len(info.shape) < 2


def linear_shapes(source: Source, view: DenseView) -> dict[str, tuple[int, int]]:
    """Return rows and columns of the matrices that quantization applies to, by path. Raises
    UnsupportedError."""
    shapes: dict[str, tuple[int, int]] = {}
    for path in linear_modules(source):
        info = view.tensors.get(f"{path}.weight")
        if info is None or len(info.shape) != 2:
            raise UnsupportedError(f"{path} is not stored separately under that name", _OTHERS)
        shapes[path] = info.shape[0], info.shape[1]
    return shapes


def linear_modules(source: Source) -> list[str]:
    """Return the paths of the linear layers that quantization applies to, in the model's order."""
    return [path for path, quantizable in _linears(source) if quantizable]


def source_heads(source: Source) -> list[str]:
    """Return the paths of the linear layers that quantization does not apply to, tied heads and
    encoders of images and audio among them: other libraries have modules for them."""
    return [path for path, quantizable in _linears(source) if not quantizable]


def _linears(source: Source) -> list[tuple[str, bool]]:
    import torch

    from inferno.nn import AudioEncoder, ImageEncoder, Linear, TiedLMHead

    with torch.device("meta"):
        model = source.architecture.build(source.model)
    encoders = [m for m in model.modules() if isinstance(m, ImageEncoder | AudioEncoder)]
    inside = {module for encoder in encoders for module in encoder.modules()}
    return [
        (
            checkpoint_path(path),
            isinstance(module, Linear) and module.quantizable and module not in inside,
        )
        for path, module in model.named_modules()
        if isinstance(module, Linear | TiedLMHead)
    ]
