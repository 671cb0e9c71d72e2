"""`inferno completion`: completion of commands and options for a shell."""

from __future__ import annotations

import rich_click as click

from inferno.cli import cli
from inferno.cli.options import debug_option, declare

_USE = """\
# bash: inferno completion bash > ~/.local/share/bash-completion/completions/inferno
# zsh:  inferno completion zsh > ~/.zfunc/_inferno   (with fpath+=~/.zfunc before compinit)
# fish: inferno completion fish > ~/.config/fish/completions/inferno.fish
"""


@declare
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@debug_option
def command(shell: str) -> None:
    """Print the completion script for a shell. Its first lines say where it belongs."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click has it"
    script = kind(cli, {}, "inferno", "_INFERNO_COMPLETE").source()
    first, _, rest = script.partition("\n")
    # zsh reads the first line, which must stay the first.
    click.echo(f"{first}\n{_USE}{rest}" if first.startswith("#") else f"{_USE}{script}")
