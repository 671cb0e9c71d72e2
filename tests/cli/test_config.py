"""`inferno serve --config`: a file with every option, models with their own, and what beats it."""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inferno.cli import cli, config
from inferno.cli.serve import command
from inferno.errors import OptionError
from inferno.plan import Options

FILE = """
port = 1234
log-format = "json"
memory = "3GiB"
api_key = ["sk-secret"]
page = false

[models.small]
ref = "demo"
aliases = ["gpt-4o-mini", "s"]
pin = true
idle = "10m"
max_num_seqs = 4
cache-policy = "none"

[models."org/big"]
ref = "demo"
memory = "1GiB"
preload = true
"""


def printed(text: str, *args: str, **env: str) -> dict[str, Any]:
    """What `--print-config` says of a file's text, as values."""
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "inferno.toml").write_text(text)
        command_line = ["serve", "--config", str(file), "--print-config", *args]
        result = CliRunner().invoke(cli, command_line, env=env)
    if result.exit_code:
        raise AssertionError(result.output)
    assert "sk-secret" not in result.output
    return tomllib.loads(result.output)


def refused(text: str, *args: str) -> str:
    with pytest.raises(AssertionError) as caught:
        printed(text, *args)
    return str(caught.value)


def test_the_password_of_a_store_is_not_shown() -> None:
    shown = printed("", INFERNO_STORE="postgresql://me:sk-secret@host/db")
    assert "store" not in shown
    assert "store" not in printed('store = "postgresql://me:sk-secret@host/db"')
    assert printed("", "--store", "a/file.sqlite")["store"] == "a/file.sqlite"


def test_the_file_is_beaten_by_the_environment_and_that_by_the_command_line() -> None:
    assert printed("")["port"] == 8000
    assert printed(FILE)["port"] == 1234
    assert printed(FILE, INFERNO_PORT="2")["port"] == 2
    assert printed(FILE, "--port", "3", INFERNO_PORT="2")["port"] == 3
    settings = printed(FILE)
    assert (settings["log_format"], settings["page"]) == ("json", False)


def test_what_is_printed_is_a_file_that_says_the_same() -> None:
    settings = printed(FILE)
    assert settings["models"]["small"] == {
        "ref": "demo",
        "aliases": ["gpt-4o-mini", "s"],
        "pin": True,
        "idle": "10m",
        "max_num_seqs": 4,
        "cache_policy": "none",
    }
    lines = [f"{key} = {config._toml(value)}" for key, value in settings.items() if key != "models"]
    for name, table in settings["models"].items():
        lines.append(f'[models."{name}"]')
        lines += [f"{key} = {config._toml(value)}" for key, value in table.items()]
    assert printed("\n".join(lines)) == settings


def test_every_option_of_serve_can_be_in_the_file() -> None:
    text = ""
    for key, option in config._settable(command.params).items():
        if option.is_flag:
            value: Any = True
        elif option.nargs != 1:
            continue
        elif isinstance(choices := getattr(option.type, "choices", None), list | tuple):
            value = choices[0]
        else:
            value = {"integer": 1, "integer range": 1}.get(option.type.name, "1")
            value = 0.5 if option.type.name.startswith("float") else value
        text += f"{key} = {config._toml([value] if option.multiple else value)}\n"
    settings = printed(text)
    assert len(settings) > 30
    assert settings["max_num_seqs"] == 1 and settings["disable"] == ["1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "Did you mean port?"),
        ("config = 'x'", "unknown key 'config'"),
        ("port = 'many'", "port is 'many'"),
        ("port = 70000", "port is 70000"),
        ("port = true", "port is true"),
        ("page = 1", "Write true or false"),
        ("log_format = 'xml'", "log_format is 'xml'"),
        ("[models.a]", "models.a has no `ref`"),
        ("[models.a]\nref = 'demo'\npinned = true", "Did you mean pin?"),
        ("[models.a]\nref = 'demo'\nport = 1", "unknown key 'models.a.port'"),
        ("[models.a]\nref = 'demo'\npin = 1", "models.a.pin is not true or false"),
        ("[models.a]\nref = 'demo'\nidle = 'soon'", "not a time"),
        ("[models.a]\nref = 'demo'\nmax_num_seqs = 'x'", "models.a.max_num_seqs"),
        ("[models.a]\nref = 'demo'\ntp = 2.5", "models.a.tp is 2.5"),
        ("models = 1", "not a table"),
        ("port = ", "cannot read the configuration"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(text: str, message: str) -> None:
    assert message in refused(text)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "a=demo", "--model", "a=demo"], "names two models"),
        (["--model", "demo"], "not NAME=REF"),
        (["a", "b", "--locked"], "--locked is for one model"),
        (["a", "b", "--served-model-name", "x"], "--served-model-name is for one model"),
        (["--model", "a=demo", "--idle", "never"], "not a time"),
    ],
)
def test_flags_for_several_models_are_checked(args: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["serve", *args])
    assert result.exit_code == 2
    assert message in result.output


def test_models_share_the_memory_unless_they_have_their_own(tmp_path: Path) -> None:
    from inferno.cli.several import several

    seen: dict[str, Options] = {}

    def shares(text: str, *args: str) -> dict[str, str | None]:
        (tmp_path / "inferno.toml").write_text(text)
        with command.make_context(
            "serve", ["--config", str(tmp_path / "inferno.toml"), *args]
        ) as ctx:
            names = config.engine_names(command.params)
            values = {name: ctx.params[name] for name in names}
            models = config.from_file(ctx)
            setup = several(ctx, models, values, idle=None, max_loaded=ctx.params["max_loaded"])
            assert setup.budgets == {"cpu": 3 * 2**30}
            seen.update(zip([m.name for m in models], setup.options, strict=True))
        return {name: options.memory for name, options in seen.items()}

    assert shares(FILE) == {"small": str(3 * 2**29), "org/big": "1GiB"}
    assert seen["small"].max_num_seqs == 4
    assert shares(FILE, "--max-loaded", "1")["small"] == str(3 * 2**30)
    shares(FILE, "--max-num-seqs", "7")  # the command line beats a model's table
    assert seen["small"].max_num_seqs == seen["org/big"].max_num_seqs == 7


def test_times_are_read() -> None:
    assert [config.seconds(t, "x") for t in ("90", "1.5m", "2h", "1d", 5, None)] == [
        90,
        90,
        7200,
        86400,
        5,
        None,
    ]
    with pytest.raises(OptionError):
        config.seconds("-1", "x")


@pytest.mark.parametrize("urls", ['"shm://a,shm://b"', '["shm://a", "shm://b"]'])
def test_a_file_may_name_several_instances_to_decode_with(urls: str) -> None:
    assert printed(f"decode_with = {urls}")["decode_with"] == "shm://a,shm://b"
    model = printed(f'[models.m]\nref = "demo"\ndecode_with = {urls}')["models"]["m"]
    assert Options(decode_with=model["decode_with"]).decode_with == "shm://a,shm://b"
    given = printed("", "--decode-with", "shm://a", "--decode-with", "shm://b")
    assert given["decode_with"] == "shm://a,shm://b"
    assert "decode_with" not in printed("")
