"""How an AWQ matrix is packed: read from the config and checked against the headers. Imports no
torch.

Of O rows and I columns in G groups, `gemm` stores `qweight` int32 (I, O / 8), `qzeros` int32
(G, O / 8) and `scales` (G, O); `gemv` stores `qweight` (O, I / 8), `qzeros` (O, Z) and `scales`
(O, 8 · Z), padded to Z words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from inferno.contracts import COMPUTE_DTYPES, Along, IntLayout, Refused, StoredMatrix

PARTS = {"qweight", "qzeros", "scales"}
VERSIONS = ("gemm", "gemv")


@frozen
class Packing:
    rows: int
    columns: int
    group: int
    """Columns with one scale."""
    by_rows: bool
    """Whether words run along the columns of a row: `gemv`, not `gemm`."""

    @property
    def layout(self) -> IntLayout:
        """The layout in memory."""
        return IntLayout.fitting(4, self.group)

    @property
    def along(self) -> dict[str, Along]:
        """As `HeldMatrix.along`; nothing for `gemv`, whose words are views of what is stored."""
        if self.by_rows:
            return {}
        by_group = (0, self.group, 1)
        return {
            "qweight": ((1, 8, 1), (0, 1, 1)),
            "qzeros": ((1, 8, 1), by_group),
            "scales": ((1, 1, 1), by_group),
        }

    @classmethod
    def of(cls, stored: StoredMatrix) -> Packing:
        """Raises Refused."""
        parts, config = stored.parts, stored.quant_config
        if config.get("quant_method", "awq") != "awq":
            raise Refused("it reads checkpoints whose quant_method is awq")
        if set(parts) != PARTS:
            raise Refused("it reads matrices stored as qweight, qzeros and scales")
        if any(len(info.shape) != 2 or 0 in info.shape for info in parts.values()):
            raise Refused("qweight, qzeros and scales must have two dimensions each")
        if parts["qweight"].dtype != "int32" or parts["qzeros"].dtype != "int32":
            raise Refused("codes must be packed in int32")
        if (kind := parts["scales"].dtype) not in COMPUTE_DTYPES:
            raise Refused(f"scales must be {', '.join(COMPUTE_DTYPES)}, not {kind}")
        bits, group, version = _settings(config)
        if type(bits) is not int or bits != 4:
            raise Refused(f"it reads 4 bits, and quantization_config says {bits!r}")
        if version not in VERSIONS:
            raise Refused(f"it reads the versions {' and '.join(VERSIONS)}, not {version!r}")
        by_rows = version == "gemv"
        rows, columns = parts["qweight"].shape if by_rows else parts["qweight"].shape[::-1]
        rows, columns = (rows, columns * 8) if by_rows else (rows * 8, columns)
        if type(group) is not int or not (group == -1 or group > 0) or columns % group:
            raise Refused(f"group_size must divide the {columns} columns or be -1, not {group!r}")
        group = columns if group == -1 else group
        shapes = {part: parts[part].shape for part in ("qzeros", "scales")}
        wanted = _shapes(rows, columns // group, by_rows=by_rows, group=group)
        if shapes != wanted:
            raise Refused(
                f"qzeros and scales are {shapes['qzeros']} and {shapes['scales']}, but groups of "
                f"{group} columns in version {version}, as quantization_config says, make them "
                f"{wanted['qzeros']} and {wanted['scales']}"
            )
        return cls(rows=rows, columns=columns, group=group, by_rows=by_rows)


def _settings(config: Mapping[str, Any]) -> tuple[Any, Any, str]:
    """Return bits, group size and version. Files of old writers have other names for them."""
    bits = config.get("bits", config.get("w_bit", 4))
    group = config.get("group_size", config.get("q_group_size", 128))
    return bits, group, str(config.get("version") or config.get("format") or "gemm").lower()


def _shapes(rows: int, groups: int, *, by_rows: bool, group: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `qzeros` and `scales`."""
    if not by_rows:
        return {"qzeros": (groups, rows // 8), "scales": (groups, rows)}
    multiple = {64: 2, 32: 4}.get(group, 1)  # words of a row of zero points, as AutoAWQ pads them
    words = -(-groups // 8)
    words = -(-words // multiple) * multiple
    return {"qzeros": (rows, words), "scales": (rows, 8 * words)}
