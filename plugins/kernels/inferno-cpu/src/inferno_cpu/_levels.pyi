"""The levels of the kernels. Needs no torch."""

def available() -> list[str]:
    """Names of the levels that this machine can run, best first; the last is "portable"."""

def wanted() -> str:
    """The level that INFERNO_CPU_LEVEL names, or else the best one. Raises ValueError if this
    machine cannot run the one named."""
