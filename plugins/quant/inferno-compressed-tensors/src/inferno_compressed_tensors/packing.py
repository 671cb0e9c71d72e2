"""How a matrix of a compressed-tensors checkpoint is packed: read from the config's groups and
checked against the headers. Imports no torch.

A matrix of O rows and I columns is stored as `weight_packed` int32 (O, I · bits / 32), or as
`weight` in int8 or float8 (O, I). `weight_scale` is of the matrix, of each row (O, 1), of groups of
columns (O, G), or of blocks of a float8 matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from attrs import frozen

from inferno.configs import PatternError, begins_with
from inferno.contracts import (
    COMPUTE_DTYPES,
    Along,
    IntLayout,
    Refused,
    StoredMatrix,
    TensorInfo,
    W8A8Layout,
)

METHOD = "compressed-tensors"
PACKED = {"weight_packed", "weight_scale", "weight_shape"}
SCALE, ZERO_POINT = "input_scale", "input_zero_point"
ACTIVATIONS = {SCALE, ZERO_POINT, "input_global_scale"}
"""Of activations that are rounded with one scale for all tokens."""
_SHOWN = 100
"""Characters of a pattern that a message repeats."""
ADDED = 32
"""Columns of zeros after a matrix whose activations are not rounded by kernels."""
Activations = Literal["token", "token with zero", "tensor"]
"""How activations are rounded to int8: with a scale for each token, with a zero point too, or with
a stored scale, and perhaps a zero point, for all."""


@frozen
class Packing:
    rows: int
    columns: int
    bits: int
    packed: bool
    """Whether codes are packed in int32."""
    symmetric: bool
    group: int
    """Columns with one scale."""
    block: tuple[int, int] | None
    """Rows and columns with one scale, of a float8 matrix."""
    ordered: bool
    """Whether `weight_g_idx` assigns columns to groups in another order: act-order."""
    activations: Activations | None = None
    """None: they are not rounded, or in a way that kernels refine."""

    @property
    def layout(self) -> IntLayout | W8A8Layout | tuple[int, int]:
        """The layout in memory: of integers, or the block of floats."""
        if self.block is not None:
            return self.block
        if self.activations is not None:
            return W8A8Layout(symmetric=self.symmetric)
        size = math.gcd(self.group, self.columns)
        return IntLayout.fitting(self.bits, size, symmetric=self.bits == 8 and self.symmetric)

    @property
    def unit(self) -> tuple[int, int]:
        """Rows and columns that stay together; no columns are cut that are in another order, or
        whose activations share a scale."""
        layout = self.layout
        if isinstance(layout, tuple):
            return layout if layout[0] > 1 else (1, 1)
        return (1, layout.group if isinstance(layout, IntLayout) and not self.ordered else 0)

    def along(self, stored: StoredMatrix) -> dict[str, Along]:
        """As `HeldMatrix.along`, of packed integers with scales for each row."""
        scales = stored.parts["weight_scale"].shape
        if not isinstance(self.layout, IntLayout) or not self.packed:
            return {}
        if len(scales) != 2 or scales[0] != self.rows:
            return {}
        word, by_group = 32 // self.bits, (1, self.group, 1)
        return {
            "weight_packed": ((0, 1, 1), (1, word, 1)),
            "weight_scale": ((0, 1, 1), by_group),
            "weight_zero_point": ((0, word, 1), by_group),
        }

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        layout, columns = self.layout, self.columns
        if isinstance(layout, tuple):
            scales = -(-self.rows // layout[0]) * -(-columns // layout[1])
            return self.rows * columns + 4 * scales
        added = ADDED if self.activations in ("token with zero", "tensor") else 0
        return layout.nbytes(self.rows, columns + added) + (8 * columns if self.ordered else 0)

    @classmethod
    def of(cls, stored: StoredMatrix) -> Packing:
        """Raises Refused."""
        parts = {part: i for part, i in stored.parts.items() if part not in ACTIVATIONS}
        if stored.quant_config.get("quant_method") != METHOD:
            raise Refused(f"it reads checkpoints whose quant_method is {METHOD}")
        packed = "weight_packed" in parts
        _check_parts(parts, packed=packed)
        name, scale = "weight_packed" if packed else "weight", parts["weight_scale"]
        weights = described(stored.quant_config, stored.path)
        bits, symmetric = weights.get("num_bits"), weights.get("symmetric", True)
        if type(bits) is not int or bits not in ((4, 8) if packed else (8,)):
            raise Refused(f"it reads 4 packed bits, and 8, and quantization_config says {bits!r}")
        if not isinstance(symmetric, bool):
            raise Refused("symmetric of quantization_config must be true or false")
        rows, columns = parts[name].shape
        columns = columns * 32 // bits if packed else columns
        if parts[name].dtype == "float8_e4m3fn":
            block = _block(weights, scale, rows, columns)
            return cls(rows, columns, 8, False, True, columns, block, False)
        group = _group(weights, scale, rows, columns)
        _check_zero_points(parts, symmetric=symmetric, bits=bits, rows=rows, packed=packed)
        ordered = "weight_g_idx" in parts
        if ordered and parts["weight_g_idx"].shape != (columns,):
            raise Refused(f"weight_g_idx must have {columns} columns")
        activations = None
        if bits == 8 and group == columns and not ordered:  # one scale for each row
            activations = _activations(stored)
        return cls(rows, columns, bits, packed, symmetric, group, None, ordered, activations)


def _check_parts(parts: Mapping[str, TensorInfo], *, packed: bool) -> None:
    """Raise Refused for tensors of other names, types or dimensions."""
    needed = PACKED if packed else {"weight", "weight_scale"}
    others = {"weight_zero_point", "weight_g_idx"} if packed else {"weight_zero_point"}
    if not needed <= set(parts) <= needed | others:
        raise Refused(
            "it reads matrices stored as weight_packed, weight_scale and weight_shape, or as "
            "weight and weight_scale"
        )
    codes, scale = parts["weight_packed" if packed else "weight"], parts["weight_scale"]
    if codes.dtype not in (("int32",) if packed else ("int8", "float8_e4m3fn")):
        raise Refused(
            f"it reads packed codes in int32, and int8 and float8_e4m3fn, not {codes.dtype}"
        )
    if len(codes.shape) != 2 or 0 in codes.shape:
        raise Refused("it reads matrices, of two dimensions")
    if scale.dtype not in COMPUTE_DTYPES:
        raise Refused(f"it reads scales in {', '.join(COMPUTE_DTYPES)}, not {scale.dtype}")


def described(config: Mapping[str, Any], path: str, part: str = "weights") -> Mapping[str, Any]:
    """Return what the config says of a module's weights: of the group with a target that is its
    path, a pattern of it, or `Linear`; or of another part of that group, empty if absent. Raises
    Refused."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping):
        raise Refused("config_groups of quantization_config must be an object")
    targets = list(_targets(groups))
    for wanted in (lambda target: _matches(target, path), lambda target: target == "Linear"):
        for target, group in targets:
            if wanted(target):
                if not isinstance(group.get("weights"), Mapping):
                    raise Refused(f"config_groups say by {target!r} that this is not quantized")
                fields = group.get(part) or {}
                if not isinstance(fields, Mapping):
                    raise Refused(f"{part} of config_groups must be an object")
                return fields
    raise Refused("no target of config_groups matches this module")


def _activations(stored: StoredMatrix) -> Activations | None:
    """Return how activations are rounded to int8, if it is with one scale for each token, or one
    that is stored for all. Raises Refused."""
    given = described(stored.quant_config, stored.path, "input_activations")
    if (given.get("num_bits"), given.get("type")) != (8, "int"):
        return None
    dynamic, symmetric = given.get("dynamic"), given.get("symmetric", True)
    if not isinstance(symmetric, bool):
        raise Refused("symmetric of input_activations must be true or false")
    if (given.get("strategy"), dynamic) == ("token", True):
        return "token" if symmetric else "token with zero"
    if (given.get("strategy"), dynamic) != ("tensor", False):
        return None
    for part in (SCALE,) if symmetric else (SCALE, ZERO_POINT):
        info = stored.parts.get(part)
        if info is None or info.shape not in ((), (1,), (1, 1)):
            raise Refused(
                f"input_activations say that one scale of activations is stored for all tokens, "
                f"but {part} is {'missing' if info is None else info.shape}"
            )
    return "tensor"


def _targets(groups: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for group in groups.values():
        if not isinstance(group, Mapping) or not isinstance(group.get("targets"), list):
            raise Refused("each of config_groups must be an object with a list of targets")
        for target in group["targets"]:
            yield str(target), group


def _matches(target: str, path: str) -> bool:
    if not target.startswith("re:"):
        return target == path
    try:
        return begins_with(path, target.removeprefix("re:"))
    except PatternError as error:
        raise Refused(f"config_groups have the target {target[:_SHOWN]!r}, {error}") from None


def _group(weights: Mapping[str, Any], scale: TensorInfo, rows: int, columns: int) -> int:
    """Return the columns with one scale. Raises Refused."""
    group = weights.get("group_size")
    if weights.get("strategy") in ("channel", "tensor") or group in (None, -1):
        group = columns
    if type(group) is not int or group < 1:
        raise Refused(f"group_size must be a number of columns or -1, not {group!r}")
    wanted = (rows, -(-columns // group))
    alike = wanted[1] == 1 and scale.shape in ((), (1,), (1, 1), (rows,))
    if scale.shape != wanted and not alike:
        raise Refused(
            f"weight_scale is {scale.shape}, but groups of {group} columns, as "
            f"quantization_config says, make it {wanted}"
        )
    return group


def _block(
    weights: Mapping[str, Any], scale: TensorInfo, rows: int, columns: int
) -> tuple[int, int]:
    """Return rows and columns with one scale. Raises Refused."""
    if scale.shape in ((), (1,), (1, 1), (rows,), (rows, 1)):
        return 1, columns
    given = weights.get("block_structure")
    if isinstance(given, list) and len(given) == 2 and all(type(n) is int and n > 0 for n in given):
        if scale.shape == (-(-rows // given[0]), -(-columns // given[1])):
            return given[0], given[1]
    raise Refused(
        f"weight_scale has the shape {scale.shape}; a matrix of {(rows, columns)} needs one scale, "
        f"one for each row, or one for each of the blocks {given!r} of quantization_config"
    )


def _check_zero_points(
    parts: Mapping[str, TensorInfo], *, symmetric: bool, bits: int, rows: int, packed: bool
) -> None:
    zeros, scale = parts.get("weight_zero_point"), parts["weight_scale"].shape
    if zeros is None:
        if not symmetric:
            raise Refused("quantization_config says it is not symmetric, but has no zero points")
        return
    wanted = (-(-rows * bits // 32), scale[-1] if scale else 1) if packed else scale
    if symmetric:
        return  # all zero, and not read
    if zeros.dtype != ("int32" if packed else "int8") or zeros.shape != wanted:
        raise Refused(f"weight_zero_point is {zeros.dtype} {zeros.shape}, not {wanted}")
