"""The command `inferno gpu-report`: speed and errors of installed plugins on a device.

Sections run one after the other, each in its own process. They measure what plugins declare:
attention backends, kernel providers, quantization schemes, and for this report alone sizes of
architectures and variants of backends (`declared`). This module imports no torch: the sections do.
"""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Command


@hookimpl
def inferno_commands() -> list[Command]:
    return [
        Command(
            name="gpu-report",
            help="Measure speed and errors of installed plugins on a GPU.",
            command="inferno_gpu_report.command:command",
        )
    ]
