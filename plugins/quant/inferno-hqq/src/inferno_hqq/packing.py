"""How an HQQ matrix is packed: by its headers, compared with the config. Imports no torch.

A matrix is cut into groups of consecutive values, the rows of a matrix of codes (axis 1), or into
columns of one (axis 0). `W_q` has its rows in as many equal parts as a byte has codes, the first in
the highest bits; of 3 bits ten in an int32. `scale` and `zero` have a value for each group. Scalars
beside them say bits, group size, axis and shape again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inferno.contracts import COMPUTE_DTYPES, IntLayout, Refused, StoredMatrix

NEEDED = {"W_q", "scale", "zero", "shape", "nbits", "group_size", "axis"}
OTHERS = set(
    "packing unpack_view_dtype view_as_float quant_scale quant_zero compute_dtype offload_meta "
    "encoded_state_dict stores_quant_config channel_wise optimize round_zero".split()
)


@frozen
class Packing:
    bits: int
    """1, 2, 3, 4 or 8 per value."""
    axis: int
    groups: int
    group: int
    """Values with one scale."""

    @property
    def layout(self) -> IntLayout | None:
        """The layout in memory: 1, 2 and 3 bits become 4, as kernels have no fewer. None: dense, as
        groups of axis 0 are spread over rows."""
        return IntLayout.fitting(self.bits, self.group) if self.axis == 1 else None

    @classmethod
    def of(cls, stored: StoredMatrix) -> Packing:
        """Raises Refused."""
        parts, config = stored.parts, stored.quant_config
        if config.get("quant_method", "hqq") != "hqq":
            raise Refused("it reads checkpoints whose quant_method is hqq")
        if not set(parts) >= NEEDED or set(parts) - NEEDED - OTHERS:
            raise Refused("it reads matrices stored as W_q, scale, zero and their description")
        codes, scale = parts["W_q"], parts["scale"]
        if codes.dtype not in ("uint8", "int32"):
            raise Refused("it reads W_q in uint8 or int32: save it without view_as_float")
        if any(parts[part].dtype not in COMPUTE_DTYPES for part in ("scale", "zero")):
            raise Refused("it reads scales and zero points in floats")
        if any("int" not in parts[part].dtype for part in ("shape", "nbits", "axis")):
            raise Refused("shape, nbits and axis must be integers")
        if any(len(i.shape) != 2 or 0 in i.shape for i in (codes, scale)):
            raise Refused("W_q and scale must have two dimensions each")
        if 1 not in scale.shape or parts["zero"].shape != scale.shape:
            raise Refused(f"scale and zero are {scale.shape} and {parts['zero'].shape}")
        fields = described(config, stored.path)
        axis = 1 if scale.shape[1] == 1 else 0
        groups = scale.shape[0] * scale.shape[1]
        bits, rows = fields.get("nbits"), codes.shape[0]
        if bits not in (1, 2, 3, 4, 8) or (bits == 3) != (codes.dtype == "int32"):
            raise Refused(f"it reads 1 to 4 bits and 8, and quant_config says {bits!r}")
        bits = int(bits)
        if fields.get("axis", axis) != axis:
            raise Refused(f"quant_config says axis {fields['axis']!r}, but scale is {scale.shape}")
        each = 10 if bits == 3 else 8 // bits
        group = codes.shape[1] if axis else fields.get("group_size")
        if type(group) is not int or group < 1 or fields.get("group_size") not in (None, group):
            raise Refused(f"quant_config says group_size {fields.get('group_size')!r}")
        wanted = groups if axis else group
        if -(-wanted // each) != rows or (bits != 3 and wanted % each) or group % 2:
            raise Refused(f"W_q of {codes.shape} is not {wanted} rows of codes of {bits} bits")
        if not axis and codes.shape[1] != groups:
            raise Refused(f"W_q is {codes.shape}, but scale is {scale.shape}")
        return cls(bits, axis, groups, group)


def described(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return what the config says of a module: of its path without `model`, `layers` and numbers,
    or of all. Raises Refused."""
    tag = ".".join(n for n in path.split(".") if n not in ("model", "layers") and not n.isdigit())
    settings = config.get("quant_config")
    entry = settings.get(tag, settings) if isinstance(settings, Mapping) else None
    fields = entry.get("weight_quant_params") if isinstance(entry, Mapping) else None
    if not isinstance(fields, Mapping):
        raise Refused("quant_config must have weight_quant_params, for all modules or this one")
    return fields
