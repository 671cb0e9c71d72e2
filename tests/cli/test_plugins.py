"""`inferno plugins` and `inferno pull`, with one good and one broken plugin of the test's own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

Inferno = Callable[..., subprocess.CompletedProcess[str]]

GOOD = """
from pathlib import Path
from inferno import hookimpl
from inferno.contracts import Source
from inferno.errors import ModelNotFoundError

@hookimpl
def inferno_sources():
    matches = lambda ref: ref.startswith("shelf:")
    return [Source(name="shelf", describe="shelf:NAME", matches=matches,
                   fetch="toy_good:fetch", priority=99)]

def fetch(ref, options):
    if ref == "shelf:empty":
        raise ModelNotFoundError("The shelf is empty", "Fill it.")
    return Path("/shelf") / ref[6:]
"""


@pytest.fixture(autouse=True)
def toys(install: Callable[[str, str], None]) -> None:
    install("toy-good", GOOD)
    install("toy-bad", "import a_module_nobody_has")


def listed(inferno: Inferno, *args: str, **env: str) -> dict[str, dict[str, Any]]:
    done = inferno("plugins", "--json", *args, **env)
    assert done.returncode == 0, done.stderr
    return {entry["name"]: entry for entry in json.loads(done.stdout)}


def test_plugins_name_their_distribution_version_and_offers(inferno: Inferno) -> None:
    good = listed(inferno)["toy-good"]
    assert (good["distribution"], good["version"], good["state"]) == ("toy-good", "2.5", "loaded")
    assert good["offers"] == {"inferno_sources": ["shelf"]}


def test_a_broken_plugin_is_reported_and_harms_no_other(inferno: Inferno) -> None:
    plugins = listed(inferno)
    assert plugins["toy-bad"]["state"] == "broken"
    assert "a_module_nobody_has" in str(plugins["toy-bad"]["error"])
    assert "Traceback" in str(plugins["toy-bad"]["detail"])
    assert plugins["toy-good"]["state"] == "loaded"


def test_the_list_for_people_says_the_same(inferno: Inferno) -> None:
    shown = inferno("plugins").stdout
    assert "toy-good 2.5" in shown and "shelf" in shown
    assert "broken" in shown and "a_module_nobody_has" in shown and "Traceback" not in shown
    assert "Install a_module_nobody_has, or repair toy-bad." in shown
    assert "--disable toy-bad" in shown
    assert "Traceback" in inferno("plugins", "--debug").stdout


def test_a_declaration_that_is_set_aside_is_listed_with_its_remedy(
    inferno: Inferno, install: Callable[[str, str], None]
) -> None:
    install("toy-old", GOOD.replace("priority=99", "priority=98, api_version=0"))
    shown = inferno("plugins").stdout
    assert "'shelf' has version 0 of inferno_sources" in shown and "Upgrade the plugin." in shown
    [aside] = listed(inferno)["toy-old"]["set_aside"]
    assert (aside["name"], aside["hook"]) == ("shelf", "inferno_sources")


def test_disabled_plugins_are_listed_as_such(inferno: Inferno) -> None:
    plugins = listed(inferno, "--disable", "toy-bad", "--disable", "toy-good")
    assert {plugins["toy-bad"]["state"], plugins["toy-good"]["state"]} == {"disabled"}


def test_only_keeps_the_built_in_plugin(inferno: Inferno) -> None:
    states = {name: entry["state"] for name, entry in listed(inferno, "--only", "toy-good").items()}
    assert states["toy-good"] == states.get("builtin", "loaded") == "loaded"
    assert states["toy-bad"] == "disabled"


def test_an_unknown_plugin_cannot_be_disabled(inferno: Inferno) -> None:
    done = inferno("plugins", "--disable", "toy-ugly")
    assert done.returncode == 2
    assert "toy-ugly" in done.stderr


def test_options_come_from_the_environment_too(inferno: Inferno) -> None:
    assert listed(inferno, INFERNO_DISABLE="toy-bad")["toy-bad"]["state"] == "disabled"


def test_pull_asks_the_source_of_the_highest_priority(inferno: Inferno) -> None:
    done = inferno("pull", "shelf:bear")
    assert (done.returncode, done.stdout) == (0, "/shelf/bear\n"), done.stderr


def test_pull_passes_on_what_the_source_says(inferno: Inferno) -> None:
    done = inferno("pull", "shelf:empty")
    assert (done.returncode, done.stderr) == (3, "Error: The shelf is empty\nFill it.\n")


def test_a_reference_of_no_source_names_what_was_looked_for(inferno: Inferno) -> None:
    done = inferno("pull", "nowhere")
    assert done.returncode == 3
    assert "nowhere" in done.stderr and "shelf:NAME" in done.stderr
