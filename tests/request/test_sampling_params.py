"""A sampling parameter is said once: its field in `sampling_params`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rich_click as click
from attrs import evolve, field, frozen, make_class
from click.testing import CliRunner

from inferno.cli.options import together
from inferno.cli.sampling import options_of
from inferno.errors import RequestError
from inferno.request.sampling_params import SamplingParams, _Between, _described, parameters
from inferno.server.fields.parameters import sampling_fields
from inferno.server.fields.schema import GenerationRequest, sampling_values
from inferno.server.fields.support import sampling_rows

SRC = Path(__file__).parents[2] / "src" / "inferno"


@frozen(kw_only=True)
class More(SamplingParams):
    """With a parameter that no other place knows of."""

    mirostat_tau: float = field(
        default=5.0,
        validator=_Between(0, 10),
        metadata=_described("Target surprise of a token.", short_flag="-m"),
    )


NEW = [p for p in parameters(More) if p not in parameters()]


def test_a_string_is_not_a_number() -> None:
    with pytest.raises(RequestError, match="temperature is 'hot'") as caught:
        SamplingParams(temperature="hot")  # type: ignore[arg-type]
    assert caught.value.param == "temperature"


def test_a_field_is_all_that_a_new_parameter_takes() -> None:
    [row] = sampling_rows(NEW)
    assert (row.name, row.verdict) == ("mirostat_tau", "honoured")
    assert row.note == "Target surprise of a token. Between 0 and 10."

    body: Any = make_class("Body", sampling_fields(NEW), bases=(GenerationRequest,), frozen=True)
    sent = sampling_values(body(mirostat_tau=2.5, temperature=0.5), parameters(More))
    assert evolve(More(), **sent) == More(mirostat_tau=2.5, temperature=0.5)

    @click.command()
    @together(options_of(NEW))
    def command(**values: Any) -> None:
        click.echo(values)

    assert CliRunner().invoke(command, ["-m", "2"]).output == "{'mirostat_tau': 2.0}\n"
    assert "--mirostat-tau" in CliRunner().invoke(command, ["--help"]).output


def test_every_parameter_is_described() -> None:
    assert len(parameters()) == 28
    assert all(p.help.endswith(".") for p in parameters())


OBEYS = {
    SRC / "sampling",
    SRC / "server" / "responses",
}


def test_no_other_place_lists_sampling_parameters() -> None:
    """A class, a collection or a run of options that names three of them is a list. The sampler's
    state of a row is none: it obeys them. Nor are other APIs, which have names of their own."""
    names = {p.name for p in parameters()}
    lists = {
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in SRC.rglob("*.py")
        if path.parent not in OBEYS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.List | ast.Tuple | ast.Set | ast.Dict | ast.Call)
        and len(names & set(_named(node))) > 2
    }
    assert {place.rpartition(":")[0] for place in lists} == {"request/sampling_params.py"}


def _named(node: Any) -> Iterator[str]:
    """What the node names: a class's fields; the strings of a collection or a call, and those of
    the calls in it."""
    if isinstance(node, ast.ClassDef):
        yield from (ast.unparse(s.target) for s in node.body if isinstance(s, ast.AnnAssign))
        return
    for each in [*ast.iter_child_nodes(node)]:
        for constant in [each, *(each.args if isinstance(each, ast.Call) else ())]:
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                yield constant.value.removeprefix("--").replace("-", "_")
