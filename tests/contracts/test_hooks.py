"""What must be true of every hook."""

from __future__ import annotations

import ast
import inspect
import tokenize
from pathlib import Path

import pytest

from inferno import contracts, hookspecs
from inferno.catalog import GROUPS, KINDS, load_catalog

HOOKS = hookspecs.HOOKS
SRC = Path(hookspecs.__file__).parent
MAX_HOOKS = 24
"""The last ones start ranks, by processes of this machine now, by clusters of others; order
requests, as they come or fairly; confine processes, which each system does in its own way; and keep
what a server stores, in a file of its own or in a database that several share."""


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_documented_takes_nothing_and_returns_a_list_of_its_kind(name: str) -> None:
    signature = inspect.signature(HOOKS[name].function)
    assert inspect.getdoc(HOOKS[name].function)
    assert list(signature.parameters) == ["self"]
    assert signature.return_annotation == f"list[{KINDS[name].__name__}]"


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_answered_by_a_plugin_of_this_repository(name: str) -> None:
    catalog = load_catalog(groups=GROUPS)
    ours = {p.distribution for p in catalog.plugins if name in p.offers and p.offers[name]}
    assert any(
        distribution == "inferno" or distribution.startswith("inferno-") for distribution in ours
    )


@pytest.mark.parametrize("name", HOOKS)
def test_a_hooks_kind_is_frozen_documented_and_speaks_its_version(name: str) -> None:
    kind = KINDS[name]
    assert kind is getattr(contracts, kind.__name__) and inspect.getdoc(kind)
    fields = {a.name: a for a in kind.__attrs_attrs__}
    assert fields["name"].type == "str"
    oldest, newest = HOOKS[name].versions
    assert fields["api_version"].default == newest and newest - 1 <= oldest <= newest
    assert kind.__setattr__ is not object.__setattr__, "declarations are frozen"


def test_the_stub_of_the_contracts_has_the_names_that_are_imported_on_first_use() -> None:
    assert contracts.__file__ is not None
    tree = ast.parse(Path(contracts.__file__).with_suffix(".pyi").read_text())
    [exported] = [ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign)]
    assert sorted(exported) == list(contracts.__all__) == dir(contracts)
    assert all(getattr(contracts, name) is not None for name in exported)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        getattr(contracts, "Nothing")  # noqa: B009  # type checkers know that there is none


def test_hooks_stay_few() -> None:
    assert len(HOOKS) <= MAX_HOOKS, (
        "one per noun that a third party would publish a package for: see hookspecs.py"
    )


def test_nothing_installed_here_is_broken() -> None:
    assert [(p.name, p.error) for p in load_catalog(groups=GROUPS).broken] == []


@pytest.mark.parametrize("name", HOOKS)
def test_adding_a_hook_names_it_three_times(name: str) -> None:
    """The import of its declaration's type, its method, and that type as what the method returns:
    all tables are derived from these."""
    with Path(hookspecs.__file__).open("rb") as file:
        words = [
            each.string for each in tokenize.tokenize(file.readline) if each.type == tokenize.NAME
        ]
    assert (words.count(name), words.count(KINDS[name].__name__)) == (1, 2)


def test_no_module_lists_hooks() -> None:
    lists = [
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict | ast.Call)
        if sum(
            isinstance(each, ast.Constant) and each.value in HOOKS
            for each in ast.iter_child_nodes(node)
        )
        > 2
    ]
    assert lists == []
