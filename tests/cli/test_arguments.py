"""Wrong values of options: errors that name the option, before a model is loaded."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from inferno.cli import cli


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("explain demo --packed-cache-size lots", "invalid --packed-cache-size 'lots'"),
        ("convert demo --to q8_0 -o x.gguf --split-size 1X", "invalid --split-size '1X'"),
        ("serve demo --served-model-name=", "--served-model-name is empty"),
        ("generate demo -p hi --temperature -1", "temperature is -1.0"),
    ],
)
def test_a_wrong_value_is_named_with_its_option(args: str, message: str) -> None:
    result = CliRunner().invoke(cli, args.split())
    assert result.exit_code == 2
    assert message in result.stderr
    assert "inferno 1" not in result.stderr  # what a loaded model begins with
