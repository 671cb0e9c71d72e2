"""Cache layout and refusals of the Triton attention, which `attend.TritonAttend` launches.

Imports neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from inferno.contracts import AttentionNeed, CacheTensor, Device

LAYOUT = "head-major"
"""Name of the cache layout: a block's tokens of one head are contiguous."""

CACHE_DTYPES: Mapping[str, str] = {"fp8_e4m3": "float8_e4m3fn", "int8": "int8"}
"""Element types of a cache other than the compute type, by `AttentionNeed.cache_dtype`."""

LEAST_CAPABILITY = (8, 0)

_MAX_HEAD_DIM = 256
_MAX_LATENT_HEAD_DIM = 576
"""As DeepSeek's: 512 elements that are values too, and 64 of the position."""


def refuses_device(device: Device) -> str | None:
    """Say why kernels of this package cannot run on the device."""
    if device.kind != "cuda":
        return f"it runs on CUDA devices, not on {device}"
    if device.capability is None:
        return f"the driver does not tell the compute capability of {device}"
    if device.capability < LEAST_CAPABILITY:
        least, level = (".".join(map(str, each)) for each in (LEAST_CAPABILITY, device.capability))
        return f"it needs compute capability {least}, {device} has {level}"
    if find_spec("triton") is None:
        return "triton is not installed: torch's builds for CUDA bring it"
    return None


def refuses(need: AttentionNeed) -> str | None:
    if (reason := refuses_device(need.device)) is not None:
        return reason
    if need.num_heads % need.num_kv_heads:
        return (
            f"{need.num_heads} query heads are not divisible by {need.num_kv_heads} key/value heads"
        )
    limit = _MAX_HEAD_DIM if need.latent_dim is None else _MAX_LATENT_HEAD_DIM
    if max(need.head_dim, need.output_dim) > limit:
        return f"its tiles hold heads of at most {limit}, not {need.head_dim}"
    if need.latent_dim is not None and not 0 < need.latent_dim <= need.head_dim:
        return f"latent_dim {need.latent_dim} is not between 1 and head_dim {need.head_dim}"
    if need.sliding_window is not None and need.sliding_window < 1:
        return f"a window of {need.sliding_window} tokens excludes the current token"
    if need.dtype == "float32" and max(need.head_dim, need.output_dim) > 128:
        return f"float32 heads of {need.head_dim} do not fit into shared memory: use bfloat16"
    if need.cache_dtype not in ("auto", *CACHE_DTYPES):
        return (
            f"it stores keys and values as {', '.join(CACHE_DTYPES)} or in the compute type, "
            f"not as {need.cache_dtype}"
        )
    return None


def cache(need: AttentionNeed, block_size: int) -> Mapping[str, CacheTensor]:
    """Return the tensors of one block: (heads, tokens, elements), and for 8-bit elements a scale
    per token and head. Latent attention stores no values."""
    kind, heads = need.cache_dtype, need.num_kv_heads
    dtype = need.dtype if kind == "auto" else CACHE_DTYPES[kind]
    dims = {"k": need.head_dim}
    if need.latent_dim is None:
        dims["v"] = need.output_dim
    tensors = {name: CacheTensor((heads, block_size, dim), dtype) for name, dim in dims.items()}
    if kind != "auto":
        scales = CacheTensor((heads, block_size), "float32")
        tensors |= {f"{name}_scales": scales for name in dims}
    return tensors
