"""Writers: what `inferno convert` can make of a checkpoint.

Suffixes: O rows (output features), I columns (input features).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.architectures import Architecture, ModelConfig
from inferno.contracts.checkpoints import TensorInfo, TextAssets
from inferno.contracts.mixes import DenseMatrices

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.nn.weight import Weight


@frozen(kw_only=True)
class WriteOptions:
    """What a user may ask of a writer. A writer lists the optional ones that it understands."""

    dtype: str | None = None
    """Dtype of dense matrices. None: as stored, and dequantized ones in the compute dtype."""
    split: int | None = None
    """The most bytes of one file; None: the writer's usual."""
    group: int | None = None
    """Columns that share a scale, -1 for all of a row; None: the writer's usual."""
    act_order: bool = False
    """Whether columns are quantized in the order of their activations, largest first."""
    damping: float | None = None
    """Share of the mean diagonal that is added to a Hessian's diagonal; None: the writer's
    usual."""


class DenseCheckpoint(Protocol):
    """A checkpoint as writers read it: every matrix can be read as a dense one, whatever its
    scheme. Names are Hugging Face's."""

    @property
    def architecture(self) -> Architecture:
        """The declaration of its architecture."""
        ...

    @property
    def model(self) -> ModelConfig:
        """The config, as the architecture reads it."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """`config.json` without `quantization_config`."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Headers of the tensors as they are read: a matrix of any scheme is one `weight`."""
        ...

    @property
    def mtp(self) -> frozenset[str]:
        """Names of the tensors of multi-token-prediction layers, which a file may leave out."""
        ...

    def text(self) -> TextAssets: ...

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the rows `start` to `stop` of a tensor, all by default. Plain tensors have their
        stored dtype, dequantized matrices float32: their exact values. Raises CheckpointError."""
        ...

    def weight(self, name: str) -> Weight | None:
        """Return a quantized matrix as its scheme holds it; None if the tensor is stored plain."""
        ...

    @property
    def matrices(self) -> DenseMatrices:
        """Every matrix, dense or dequantized, in the form that mixes take."""
        ...

    @property
    def importance(self) -> Mapping[str, Any] | None:
        """The importance of each column, by module path: float32 NumPy arrays, (I,), from the
        user's importance matrix. None without one."""
        ...

    def quantizer(self, layout: str) -> Callable[..., tuple[Tensor, ...]] | None:
        """Return the kernel that quantizes to a layout on this machine: see `QuantScheme.pack`.
        None: there is none."""
        ...


@frozen(kw_only=True)
class Seen:
    """The inputs of a matrix, as calibration saw them."""

    gram_II: Tensor
    """The sum of x xT over all inputs, float32."""
    mean_I: Tensor
    """The mean of |x|, float32."""
    count: int
    """Number of inputs."""


class Encoding(Protocol):
    """How a scheme stores dense matrices: the inverse of `QuantScheme.load`."""

    def parts(self, path: str, shape: tuple[int, int]) -> Mapping[str, TensorInfo] | str:
        """Return the headers of the tensors that a module's matrix becomes, by part; or a sentence
        that says why it stays dense."""
        ...

    def config(self, dense: Sequence[str]) -> Mapping[str, Any]:
        """Return `quantization_config`. `dense` are the linear modules that are not quantized."""
        ...

    def encode(self, path: str, weight_OI: Tensor, seen: Seen | None) -> Mapping[str, Tensor]:
        """Quantize a matrix, float32, to its parts. `seen` are its inputs, if they are known."""
        ...


@runtime_checkable
class Scaling(Protocol):
    """An `Encoding` that lowers the error of some columns: they are multiplied by factors, and the
    rows of the module in front of the matrix are divided by them."""

    def scale(self, readers: Sequence[tuple[Tensor, Seen]]) -> Tensor:
        """Return the factor of each column, (I,) float32, for matrices that read the same output;
        `readers` has their values, (O, I) float32, and inputs."""
        ...


@frozen(kw_only=True)
class WrittenFile:
    """A file of tensors that is to be written."""

    name: str
    """Relative to the folder it is written to."""
    start: bytes
    """What comes before the tensors."""
    places: Mapping[str, tuple[int, int]]
    """Offset and bytes of each tensor, by its name in the output."""
    nbytes: int
    """Of the whole file. Bytes between tensors are zero."""


@frozen(kw_only=True)
class Piece:
    """Tensors that are computed together. An interrupted run continues with the first piece that
    was not finished."""

    tensors: tuple[str, ...]
    """Their names in the output."""
    make: Callable[[], Iterator[tuple[str, Tensor]]]
    """Yields their content: a name, and the next bytes of that tensor, as a contiguous tensor of
    any dtype. The bytes depend on nothing but the checkpoint, the options and installed
    versions."""
    done: Callable[[Callable[[str], memoryview]], None] | None = None
    """done(read), called instead of `make` if an earlier run has written them. `read` returns a
    written tensor's bytes."""


@frozen(kw_only=True)
class Output:
    """Everything that a writer writes, known before a tensor is read."""

    files: Sequence[WrittenFile]
    """The files of tensors. If there are several, programs open the first."""
    pieces: Sequence[Piece]
    """The work, in the order in which it is done."""
    texts: Mapping[str, bytes] = field(factory=dict)
    """Other files, by name."""
    notes: tuple[str, ...] = ()
    """Sentences for the user."""
    layouts: Mapping[str, str] = field(factory=dict)
    """Layouts of the checkpoint's matrices that are written quantized, by name. One that is held in
    the same layout must be copied; any other quantized one is rounded again, which the user must
    have allowed."""


@frozen(kw_only=True)
class Writer:
    """A format or a scheme that checkpoints can be converted to. It declares one of `output` and
    `encoding`; with neither, matrices are written dense, as safetensors."""

    name: str
    describe: str
    """What it writes, in a few words, for listings."""
    output: Callable[[DenseCheckpoint, WriteOptions, str], Output] | None = field(
        default=None, converter=lazy.optional
    )
    """output(checkpoint, options, name) -> everything that is written. `name` is that of the file
    the user asked for. Raises UnsupportedError, CheckpointError."""
    encoding: Callable[[WriteOptions], Encoding] | None = field(
        default=None, converter=lazy.optional
    )
    """encoding(options) -> how linear layers are stored in a Hugging Face folder; the rest stays
    dense. Raises OptionError."""
    options: frozenset[str] = frozenset()
    """The fields of WriteOptions that it understands, besides `dtype` and `split`."""
    groups: tuple[int, ...] = ()
    """Values of `WriteOptions.group` to choose from where the user names none, the usual one first:
    that with which the fewest matrices stay dense. Empty: `encoding` decides."""
    calibrated: bool = False
    """Whether `encode` makes use of what calibration saw."""
    weighted: bool = False
    """Whether it uses `DenseCheckpoint.importance`, if there is one."""
    api_version: int = 1
