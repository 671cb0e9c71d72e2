"""The level of the kernels: the instruction set they were compiled for that this machine runs."""

from __future__ import annotations

from inferno.errors import OptionError
from inferno_cpu import _levels


def level() -> str:
    """Return the best level that this processor and its system can run, or the one that the
    environment variable INFERNO_CPU_LEVEL names. Raises OptionError if it cannot run that one.
    Some levels use the kernels of a lower one for ops that their instructions do not change."""
    try:
        return _levels.wanted()
    except ValueError as error:
        raise OptionError(
            str(error), "Set it to one of these, or to nothing for the first."
        ) from error
