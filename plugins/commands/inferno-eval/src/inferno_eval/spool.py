"""A reference's next-token distributions on disk, and the divergence of another model from them.

Of each position are kept the log-probabilities of the most likely tokens, and that of all others
together. The divergence is that of these: the others count as one token. It is at most the whole
one's, and 0 for the same model.

Suffixes: P positions, V vocabulary, K kept tokens.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from inferno import host
from inferno.errors import OptionError

KEPT = 4096
"""The most tokens kept per position: for 150 thousand tokens a thirtieth of all logits, and of
their probability nearly everything."""

Array = np.ndarray[Any, Any]


@define(eq=False)
class Spool:
    """The reference's distributions, written once in the order of the positions, and read as often
    as needed. A temporary file, which is gone when it is closed or the process ends."""

    num_kept: int
    _file: IO[bytes]
    outside: list[float] = field(factory=list)
    """Each position's probability of the tokens that are not kept."""

    @classmethod
    def create(cls, positions: int, vocab_size: int) -> Self:
        """Create a file for these positions. Raises OptionError if the disk lacks the space."""
        num_kept = min(vocab_size, KEPT)
        folder = tempfile.gettempdir()
        needed, free = positions * (8 * num_kept + 4), shutil.disk_usage(folder).free
        if needed > free:
            raise OptionError(
                f"the reference's probabilities take {host.format_bytes(needed)}, and {folder} has "
                f"{host.format_bytes(free)} free",
                "Set TMPDIR to a folder on a larger disk, or lower --limit.",
            )
        return cls(num_kept, tempfile.TemporaryFile(prefix="inferno_eval"))

    def write(self, logprob_PV: Tensor) -> None:
        """Append some positions."""
        kept_PK, ids_PK = logprob_PV.topk(self.num_kept)
        rest_P = _rest(logprob_PV, ids_PK)
        self.outside += rest_P.exp().tolist()
        for tensor, dtype in ((ids_PK, np.int32), (kept_PK, np.float32), (rest_P, np.float32)):
            self._file.write(tensor.cpu().numpy().astype(dtype).tobytes())

    def reader(self) -> Callable[[Tensor], Tensor]:
        """Return a function that compares the log-probabilities of another model, (P, V), with the
        reference's: the next positions at each call, from the first one on."""
        self._file.seek(0)
        return self._divergence

    def _divergence(self, logprob_PV: Tensor) -> Tensor:
        """Return the KL divergence from the reference, in nats, (P,) float64."""
        count, device = len(logprob_PV), logprob_PV.device
        ids_PK = self._read(np.int32, count, self.num_kept).to(device).long()
        kept_PK = self._read(np.float32, count, self.num_kept).to(device)
        rest_P = self._read(np.float32, count).to(device)
        theirs_PK = torch.cat([kept_PK, rest_P[:, None]], -1).double()
        ours = (logprob_PV.gather(-1, ids_PK), _rest(logprob_PV, ids_PK)[:, None])
        ours_PK = torch.cat(ours, -1).double()
        terms_PK = theirs_PK.exp() * (theirs_PK - ours_PK)
        terms_PK[theirs_PK == -torch.inf] = 0.0  # also where both are
        return terms_PK.sum(-1).clamp(min=0.0)  # rounding may give less

    def _read(self, dtype: type, *shape: int) -> Tensor:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        data = self._file.read(nbytes)
        assert len(data) == nbytes, "models are compared at the positions that were written"
        return torch.from_numpy(np.frombuffer(data, dtype).reshape(shape).copy())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _rest(logprob_PV: Tensor, ids_PK: Tensor) -> Tensor:
    """Return the log-probability of all tokens but these, (P,); -inf if there are no others."""
    if ids_PK.shape[-1] == logprob_PV.shape[-1]:
        return logprob_PV.new_full((len(logprob_PV),), -torch.inf)
    return logprob_PV.scatter(-1, ids_PK, -torch.inf).logsumexp(-1)
