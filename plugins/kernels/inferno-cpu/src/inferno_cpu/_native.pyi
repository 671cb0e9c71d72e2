"""The compiled module. The parameters of the ops are described in native/*.hpp.

Types and layouts are numbered as in layouts.py, strides are in elements, an absent tensor has the
address 0, and nothing is checked.
"""

from typing import TypeAlias

Address: TypeAlias = int
"""`Tensor.data_ptr()`. A recorded op keeps it: the caller keeps the tensor."""

def available() -> list[str]:
    """Levels (instruction sets) that this machine can run, best first."""

def selected() -> str:
    """The level in use: the one that INFERNO_CPU_LEVEL names, or else the best available one,
    unless `select` chose another. Raises ValueError as `_levels.wanted` does."""

def select(level: str) -> None:
    """Use this level from now on; for tests and benchmarks. Raises ValueError if the machine
    cannot run it."""

def set_threads(threads: int) -> None:
    """Set the number of threads of the ops, torch's."""

def threads() -> int: ...

class Recording:
    """Records every op of this thread, with its addresses, while entered as a context; `replay`
    repeats them, on any thread."""

    def __init__(self) -> None: ...
    def __enter__(self) -> Recording: ...
    def __exit__(self, *exception: object) -> None: ...
    def __len__(self) -> int: ...
    def replay(self) -> None: ...

def recording() -> bool:
    """Whether the ops of this thread are recorded."""

class Ranks:
    """One rank's view of memory that the ranks of a machine share."""

    @staticmethod
    def bytes(ranks: int, slot: int, /) -> int:
        """Size of the memory: zeros at first."""

    def __init__(
        self, memory: Address, rank: int, ranks: int, slot: int, seconds: float, /
    ) -> None:
        """The caller keeps the memory. Raises ValueError for a rank that there cannot be."""

    def sum(self, dtype: int, x: Address, n: int, /) -> None:
        """Sum x over the ranks, in place. The ranks' collectives raise ConnectionError if one has
        left, TimeoutError if it is not heard for `seconds`, and RuntimeError if it is in another
        layer."""

    def gather(self, x: Address, y: Address, rows: int, widths: list[int], /) -> None:
        """Write the ranks' x side by side to y, in rows of widths[rank] bytes each."""

    def close(self) -> None:
        """Let all collectives of the ranks that wait fail."""

def rms_norm(
    dtype: int,
    x: Address,
    token_stride: int,
    head_stride: int,
    T: int,
    H: int,
    C: int,
    weight: Address,
    wide: bool,
    eps: float,
    y: Address,
    /,
) -> None: ...
def add_rms_norm(
    dtype: int,
    x: Address,
    x_stride: int,
    delta: Address,
    delta_stride: int,
    weight: Address,
    wide: bool,
    eps: float,
    sum: Address,
    y: Address,
    T: int,
    D: int,
    /,
) -> None: ...
def rope(
    dtype: int,
    x: Address,
    token_stride: int,
    head_stride: int,
    T: int,
    H: int,
    C: int,
    cos: Address,
    sin: Address,
    E: int,
    interleaved: bool,
    y: Address,
    /,
) -> None: ...
def norm_rope(
    dtype: int,
    x: Address,
    token_stride: int,
    head_stride: int,
    T: int,
    H: int,
    C: int,
    weight: Address,
    wide: bool,
    eps: float,
    cos: Address,
    sin: Address,
    E: int,
    interleaved: bool,
    y: Address,
    /,
) -> None: ...
def silu_mul(
    dtype: int,
    gate: Address,
    gate_stride: int,
    up: Address,
    up_stride: int,
    y: Address,
    T: int,
    I: int,
    /,
) -> None: ...
def add_layer_norm(
    dtype: int,
    x: Address,
    x_stride: int,
    delta: Address,
    delta_stride: int,
    weight: Address,
    wide: bool,
    eps: float,
    bias: Address,
    y: Address,
    T: int,
    D: int,
    /,
) -> None: ...
def gelu(dtype: int, x: Address, x_stride: int, T: int, I: int, /) -> None: ...
def argmax(dtype: int, x: Address, x_stride: int, ids: Address, T: int, V: int, /) -> None: ...
def gather(
    dtype: int,
    ids: Address,
    table: Address,
    y: Address,
    T: int,
    V: int,
    D: int,
    /,
) -> None: ...
def dense_repack(
    dtype: int,
    weight: Address,
    row_stride: int,
    panels: Address,
    N: int,
    K: int,
    /,
) -> None: ...
def dense_repack_fp8(
    w_dtype: int,
    weight: Address,
    row_stride: int,
    scales: Address,
    panels: Address,
    N: int,
    K: int,
    /,
) -> bool: ...
def dense_repack_table(
    w_dtype: int,
    weight: Address,
    row_stride: int,
    scales: Address,
    panels: Address,
    N: int,
    K: int,
    /,
) -> None: ...
def dense_matmul(
    w_dtype: int,
    x_dtype: int,
    x: Address,
    x_stride: int,
    panels: Address,
    bias: Address,
    y_dtype: int,
    y: Address,
    M: int,
    N: int,
    K: int,
    /,
) -> None: ...
def dense_grouped(
    w_dtype: int,
    x_dtype: int,
    x: Address,
    x_stride: int,
    panels: Address,
    bias: Address,
    y: Address,
    starts: Address,
    E: int,
    N: int,
    K: int,
    /,
) -> None: ...
def dense_argmax(
    w_dtype: int,
    x_dtype: int,
    x: Address,
    x_stride: int,
    panels: Address,
    ids: Address,
    M: int,
    N: int,
    K: int,
    /,
) -> None: ...
def dense_rows(
    w_dtype: int,
    y_dtype: int,
    panels: Address,
    ids: Address,
    y: Address,
    T: int,
    N: int,
    K: int,
    /,
) -> None: ...
def dense_read(data: Address, nbytes: int, /) -> float: ...
def peak(type: str, /) -> float:
    """Operations a second of the instruction that products of float32, bfloat16 or int8 use, on
    registers, on all threads. Takes some milliseconds: use the best of a few calls."""

def packed_panel_bytes(layout: int, K: int, /) -> int: ...
def packed_repack(
    layout: int,
    rows: Address,
    row_bytes: int,
    scales: Address,
    zeros: Address,
    panels: Address,
    N: int,
    K: int,
    /,
) -> None: ...
def packed_matmul(
    layout: int,
    panels: Address,
    x_dtype: int,
    x: Address,
    y_dtype: int,
    y: Address,
    bias: Address,
    M: int,
    N: int,
    K: int,
    /,
) -> None: ...
def packed_grouped(
    layout: int,
    panels: Address,
    x_dtype: int,
    x: Address,
    y_dtype: int,
    y: Address,
    bias: Address,
    starts: Address,
    E: int,
    N: int,
    K: int,
    /,
) -> None: ...
def packed_argmax(
    layout: int,
    panels: Address,
    x_dtype: int,
    x: Address,
    ids: Address,
    M: int,
    N: int,
    K: int,
    /,
) -> None: ...
def packed_rows(
    layout: int,
    panels: Address,
    ids: Address,
    y_dtype: int,
    y: Address,
    M: int,
    N: int,
    K: int,
    /,
) -> None: ...
def route(
    dtype: int,
    x: Address,
    x_stride: int,
    weight: Address,
    bias: Address,
    correction: Address,
    sigmoid: bool,
    normalize: bool,
    scale: float,
    experts: Address,
    weights: Address,
    T: int,
    D: int,
    E: int,
    K: int,
    /,
) -> None: ...
def dispatch(
    experts: Address,
    tokens: Address,
    starts: Address,
    places: Address,
    T: int,
    E: int,
    K: int,
    /,
) -> None: ...
def combine(
    dtype: int,
    y: Address,
    places: Address,
    weights: Address,
    out: Address,
    T: int,
    D: int,
    K: int,
    /,
) -> None: ...
def shrink(
    dtype: int,
    x: Address,
    x_stride: int,
    down: Address,
    slots: Address,
    h: Address,
    T: int,
    I: int,
    R: int,
    /,
) -> None: ...
def expand(
    dtype: int,
    h: Address,
    h_stride: int,
    up: Address,
    slots: Address,
    y: Address,
    y_stride: int,
    T: int,
    N: int,
    O: int,
    /,
) -> None: ...
def quantize(
    layout: int,
    dtype: int,
    w: Address,
    importance: Address,
    blocks: Address,
    scales: Address,
    zeros: Address,
    N: int,
    K: int,
    /,
) -> None: ...
def attend(
    dtype: int,
    cache_kind: int,
    q: Address,
    q_stride: int,
    k: Address,
    k_stride: int,
    v: Address,
    v_stride: int,
    out: Address,
    k_cache: Address,
    v_cache: Address,
    k_scales: Address,
    v_scales: Address,
    slots: Address,
    query_starts: Address,
    context_lens: Address,
    tables: Address,
    table_stride: int,
    S: int,
    H: int,
    K: int,
    C: int,
    block_size: int,
    scale: float,
    soft_cap: float,
    window: int,
    amplitudes: Address,
    used: Address,
    lines: Address,
    line_stride: int,
    num_waves: int,
    /,
) -> None: ...
def attend_whole(
    dtype: int,
    q: Address,
    q_stride: int,
    k: Address,
    k_stride: int,
    v: Address,
    v_stride: int,
    out: Address,
    query_starts: Address,
    S: int,
    H: int,
    K: int,
    C: int,
    scale: float,
    window: int,
    /,
) -> None: ...
