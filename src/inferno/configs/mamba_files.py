"""What Mamba-2 layers have in common in GGUF files, whatever their family: parts of a `Dialect`.
Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

SQUEEZED: Mapping[str, int] = {"blk.{n}.ssm_conv1d": 1}
DECAYS = frozenset({"blk.{n}.ssm_a"})


def mamba2_modules(path: str) -> dict[str, str]:
    """Return the names of a layer's modules in files, and in the original checkpoint, where the
    layer is at `path`."""
    return {
        "blk.{n}.ssm_in": f"{path}.in_proj",
        "blk.{n}.ssm_conv1d": f"{path}.conv1d",
        "blk.{n}.ssm_dt.bias": f"{path}.dt_bias",
        "blk.{n}.ssm_a": f"{path}.A_log",
        "blk.{n}.ssm_d": f"{path}.D",
        "blk.{n}.ssm_norm": f"{path}.norm",
        "blk.{n}.ssm_out": f"{path}.out_proj",
    }


def mamba2_matrices(heads: str, groups: str) -> dict[str, str]:
    """Return the vectors that files store as matrices, and the fields of `config.json` that say how
    many rows those have: of the heads and of the groups."""
    return {"blk.{n}.ssm_a": heads, "blk.{n}.ssm_d": heads, "blk.{n}.ssm_norm.weight": groups}
