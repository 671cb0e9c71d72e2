"""How a Marlin matrix is packed: read from the config and checked against the headers. Imports no
torch.

A matrix of O rows and I columns in G groups is stored as `B` int32 (I / 16, O · 2), tiles of 16 x
16 codes of 4 bits in the order of a GPU's threads, and `s` (G, O), in an order too.
"""

from __future__ import annotations

from attrs import frozen

from inferno.contracts import COMPUTE_DTYPES, IntLayout, Refused, StoredMatrix

METHODS = ("gptq", "marlin", "gptq_marlin")
PARTS = {"B", "s"}
SPARSE = {"B_24", "B_meta"}
GROUPS = (128, -1)


@frozen
class Packing:
    rows: int
    columns: int
    group: int
    """Columns with one scale."""

    @property
    def layout(self) -> IntLayout:
        """The layout in memory."""
        return IntLayout.fitting(4, self.group)

    @classmethod
    def of(cls, stored: StoredMatrix) -> Packing:
        """Raises Refused."""
        parts, config = stored.parts, stored.quant_config
        form = config.get("checkpoint_format", "marlin")
        if SPARSE & set(parts) or form == "marlin_24":
            raise Refused(
                "it does not read the 2:4 sparse format marlin_24: save the model as gptq or marlin"
            )
        if config.get("quant_method", "marlin") not in METHODS:
            raise Refused(f"it reads checkpoints whose quant_method is {' or '.join(METHODS)}")
        if set(parts) - {"workspace"} != PARTS:
            raise Refused("it reads matrices stored as B and s, Marlin's tiles")
        if form != "marlin" and config.get("is_marlin_format") is not True:
            raise Refused(f"it reads the checkpoint_format marlin, not {form!r}")
        if (bits := config.get("bits", 4)) != 4 or isinstance(bits, bool):
            raise Refused(f"it reads 4 bits, and quantization_config says {bits!r}")
        if config.get("sym", True) is not True or config.get("desc_act", False) is not False:
            raise Refused("Marlin has neither zero points nor act-order: sym and desc_act say so")
        codes, scales = parts["B"], parts["s"]
        if codes.dtype != "int32" or scales.dtype not in COMPUTE_DTYPES:
            raise Refused("codes must be packed in int32, and scales be floats")
        if any(len(info.shape) != 2 or 0 in info.shape for info in (codes, scales)):
            raise Refused("B and s must have two dimensions each")
        columns, rows = codes.shape[0] * 16, codes.shape[1] // 2
        if codes.shape[1] % 128:
            raise Refused(f"B of {codes.shape} does not have whole tiles of 64 rows")
        group = config.get("group_size", -1)
        if type(group) is not int or group not in GROUPS or (group > 0 and columns % group):
            raise Refused(f"group_size must be 128, for {columns} columns, or -1, not {group!r}")
        group = columns if group == -1 else group
        if scales.shape != (columns // group, rows):
            raise Refused(
                f"s is {scales.shape}, but groups of {group} columns, as quantization_config says, "
                f"make it {(columns // group, rows)}"
            )
        return cls(rows=rows, columns=columns, group=group)
