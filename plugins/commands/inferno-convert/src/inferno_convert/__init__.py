"""The commands `inferno convert` and `inferno package`: write a checkpoint in another format or
scheme, or as a Python package. For Python: `inferno_convert.convert.convert`,
`inferno_convert.package.package`.

A writer (`contracts.Writer`) says what is written, from headers; this package reads, dequantizes,
calibrates and writes it piece by piece into a folder beside the result, which takes its name at the
end.
"""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Command


@hookimpl
def inferno_commands() -> list[Command]:
    return [
        Command(
            name="convert",
            help="Write a model in another format or quantization scheme.",
            command="inferno_convert.convert_command:command",
        ),
        Command(
            name="package",
            help="Write a model as a Python package.",
            command="inferno_convert.package_command:command",
        ),
    ]
