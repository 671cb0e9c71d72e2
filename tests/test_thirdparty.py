"""A plugin from outside works like ours; a broken one is set aside, and says why when it is
needed."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from inferno.catalog import load_catalog
from inferno.cli import cli
from inferno.contracts import HeldMatrix, KernelProvider, QuantScheme, StoredMatrix, TensorInfo
from inferno.errors import OptionError, PluginError, UnsupportedError
from inferno.hookspecs import HOOKS
from inferno.plan import Options, resolve

STRANGERS = Path(__file__).parent / "thirdparty"
STRANGER, SCRIBE, PARROT = (STRANGERS / f"inferno-{n}" for n in ("stranger", "scribe", "parrot"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The strangers' packages, installed into a folder of their own."""
    source = shutil.copytree(STRANGERS, tmp_path_factory.mktemp("source") / "strangers")
    target = tmp_path_factory.mktemp("site")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    done = subprocess.run(
        [*pip, "--target", str(target), *map(str, source.iterdir())], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pebble")
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (96, 32), "wpe.weight": (64, 32)}
    shapes |= {"ln_f.weight": (32,), "ln_f.bias": (32,)}
    for layer in (f"h.{i}" for i in range(2)):
        shapes |= {f"{layer}.ln.weight": (32,), f"{layer}.ln.bias": (32,)}
        shapes |= {f"{layer}.attn.{n}.weight": (32, 32) for n in ("q", "k", "v", "out")}
        shapes |= {f"{layer}.attn.{n}.bias": (32,) for n in ("q", "k", "v", "out")}
        shapes |= {f"{layer}.mlp.up.weight": (128, 32), f"{layer}.mlp.up.bias": (128,)}
        shapes |= {f"{layer}.mlp.down.weight": (32, 128), f"{layer}.mlp.down.bias": (32,)}
    generator = torch.Generator().manual_seed(0)
    save_file(
        {n: torch.randn(s, generator=generator) for n, s in shapes.items()},
        folder / "model.safetensors",
    )
    config = {
        "architectures": ["PebbleForCausalLM"],
        "vocab_size": 96,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
    }
    (folder / "config.json").write_text(json.dumps({**config, "n_ctx": 64}))
    return folder


def run(site: Path, *command: str, cwd: Path | None = None) -> str:
    env = {**os.environ, "PYTHONPATH": str(site), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=env, cwd=cwd
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("stranger", [SCRIBE, STRANGER, PARROT], ids=lambda stranger: stranger.name)
def test_its_own_conformance_tests_pass(installed: Path, stranger: Path, tmp_path: Path) -> None:
    tests = shutil.copytree(stranger / "tests", tmp_path / "tests")
    out = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests), cwd=tmp_path)
    assert "passed" in out and "failed" not in out


def test_explain_says_what_it_takes_from_the_plugin(installed: Path, checkpoint: Path) -> None:
    out = run(
        installed, "-m", "inferno", "explain", str(checkpoint), "--cache-policy", "loyal", "--json"
    )
    plan = json.loads(out)
    assert plan["architecture"] == "PebbleForCausalLM" and plan["cache_policy"] == "loyal"
    chosen = {c["kind"]: c for c in plan["chosen"]}
    assert chosen["architecture"]["distribution"] == "inferno-stranger"
    assert chosen["architecture"]["version"] == "0.3.0"


def test_it_generates(installed: Path, checkpoint: Path) -> None:
    script = """
import sys
from inferno import LLM, SamplingParams
with LLM(sys.argv[1], cache_policy="loyal", device="cpu", max_num_seqs=4) as llm:
    greedy = SamplingParams(temperature=0, max_tokens=8)
    again = [llm.generate([list(range(40))], greedy)[0] for _ in range(2)]
    assert again[0].outputs[0].token_ids == again[1].outputs[0].token_ids
    assert len(again[1].outputs[0].token_ids) == 8 and again[1].num_cached_tokens == 32
"""
    run(installed, "-c", script, str(checkpoint))


@pytest.mark.slow
def test_its_processor_and_its_field_need_no_change_here(installed: Path, checkpoint: Path) -> None:
    script = """
import json, sys
from inferno import AsyncLLM, LLM, SamplingParams
from inferno.server.openai import BODIES
from inferno.server.http.parsing import decode
from inferno.server.fields.schema import sampling_values
llm = AsyncLLM(sys.argv[1], device="cpu", max_num_seqs=4)
[body] = [each for each in BODIES if each.path == "/v1/completions"]
sent = json.dumps({"prompt": [1], "favourite": 7}).encode()
parsed = decode(sent, body, strict=True, plugin_fields=llm.request_fields)
params = SamplingParams(max_tokens=5, temperature=0, **sampling_values(parsed.body))
with LLM(sys.argv[1], device="cpu", max_num_seqs=4) as own:
    assert own.generate([[1, 2]], params)[0].outputs[0].token_ids == (7,) * 5
"""
    run(installed, "-c", script, str(checkpoint))


@pytest.mark.slow
def test_its_command_is_one_of_inferno(installed: Path, checkpoint: Path) -> None:
    listed = run(installed, "-m", "inferno", "-h")
    assert re.search("scribe +Write the tokens that follow others[.]", listed)
    assert "scribe" in run(installed, "-m", "inferno", "plugins")
    out = run(installed, "-m", "inferno", "scribe", "after", str(checkpoint), "1", "2", "--count=3")
    assert len([int(token) for token in out.split()]) == 3


@pytest.mark.slow
def test_its_endpoint_is_one_of_the_server(installed: Path) -> None:
    script = """
import json
from litestar.testing import TestClient
from inferno import AsyncLLM
from inferno.server import create_app
app = create_app(AsyncLLM("demo", device="cpu", max_num_seqs=1))
with TestClient(app) as http:
    sent = {"inputs": "What does math.gcd do?", "max_new_tokens": 4, "details": True}
    answers = [http.post("/parrot/generate", json=sent), http.post("/parrot/generate", json={})]
    document = http.get("/schema/openapi.json").text
print(json.dumps([*(a.json() for a in answers), "/parrot/generate" in document]))
"""
    answer, refusal, is_described = json.loads(run(installed, "-c", script))
    assert answer["generated_text"] and answer["ignored"] == ["details"]
    assert refusal == {
        "error": "inputs: required field missing.",
        "error_type": "invalid_request_error",
    }
    assert is_described
    assert "parrot" in run(installed, "-m", "inferno", "plugins")


# --- plugins that break their contract ------------------------------------------------------------


class Site:
    """A folder of installed distributions, made by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, source: str, version: str = "1.0", group: str = "inferno") -> None:
        """A distribution `inferno-NAME` with one module and one entry point."""
        (self.folder / f"broken_{name}.py").write_text(
            "from __future__ import annotations\n" + source
        )
        info = self.folder / f"inferno_{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: inferno-{name}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = broken_{name}\n")
        importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    for module in [name for name in sys.modules if name.startswith("broken_")]:
        del sys.modules[module]


OFFER = """
from inferno import hookimpl
from inferno.contracts import (
    Architecture, AttentionBackend, CachePolicy, Hint, KernelProvider
)
@hookimpl
def inferno_architectures():
    return [{}]
"""
PEBBLE = "Architecture(name='PebbleForCausalLM', config='nowhere:x', build='nowhere:y')"


@pytest.mark.parametrize(
    ("name", "source", "error"),
    [
        (
            "absent",
            "import a_library_that_is_not_here",
            "ModuleNotFoundError: No module named 'a_library_that_is_not_",
        ),
        ("syntax", "def broken(:", "SyntaxError"),
        ("crash", "raise RuntimeError('no licence key')", "RuntimeError: no licence key"),
        ("raises", OFFER.format("1 / 0"), "ZeroDivisionError"),
        (
            "kind",
            OFFER.format("CachePolicy(name='x', build='a:b')"),
            "inferno_architectures returned CachePolicy",
        ),
        ("number", OFFER.replace("[{}]", "42"), "TypeError"),
        ("missing", OFFER.format("Architecture(name='x')"), "TypeError"),
        (
            "path",
            OFFER.format("Architecture(name='x', config='nowhere.x', build='nowhere:y')"),
            "'nowhere.x' names no function",
        ),
        (
            "misspelt",
            "from inferno import hookimpl\n@hookimpl\ndef inferno_architecture():\n    return []",
            "there is no hook inferno_architecture",
        ),
        (
            "nameless",
            OFFER.format("Architecture(name=3, config='nowhere:x', build='nowhere:y')"),
            "inferno_architectures returned a declaration with the name 3",
        ),
    ],
)
def test_a_broken_plugin_is_set_aside_with_its_own_error(
    site: Site, name: str, source: str, error: str
) -> None:
    site.install(name, source)
    catalog = load_catalog()
    [broken] = catalog.broken
    assert broken.distribution == f"inferno-{name}" and error in broken.error
    assert "Traceback" in broken.detail or "Error" in broken.detail
    assert broken.remedy
    assert catalog.cache_policy().item.name == "lru", "the others are not harmed"


@pytest.mark.parametrize(
    ("version", "remedy"), [("0", "Upgrade the plugin."), ("99", "Upgrade inferno."), ("'1'", "Up")]
)
def test_a_declaration_of_another_version_is_set_aside_alone(
    site: Site, version: str, remedy: str
) -> None:
    other = f"{PEBBLE[:-1]}, api_version={version})"
    site.install("odd", OFFER.format(f"{other}, {PEBBLE.replace('Pebble', 'Stone')}"))
    catalog = load_catalog(disable=["transformers"])
    assert catalog.architecture("StoneForCausalLM").offer.distribution == "inferno-odd"
    [plugin] = catalog.aside
    [aside] = plugin.set_aside
    assert (aside.hook, aside.name) == ("inferno_architectures", "PebbleForCausalLM")
    assert aside.remedy.startswith(remedy) and not catalog.broken
    with pytest.raises(UnsupportedError, match="PebbleForCausalLM.*has version") as caught:
        catalog.architecture("PebbleForCausalLM")
    assert remedy in caught.value.remedy and "--disable odd" in caught.value.remedy


def test_a_contract_is_understood_in_its_present_version_and_the_one_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = HOOKS["inferno_architectures"]
    monkeypatch.setitem(HOOKS, "inferno_architectures", hook._replace(versions=(2, 3)))
    versions = [
        f"Architecture(name='V{v}', config='a:b', build='a:b', api_version={v})"
        for v in (1, 2, 3, 4)
    ]
    site.install("many", OFFER.format(", ".join(versions)))
    [plugin] = [p for p in load_catalog().plugins if p.name == "many"]
    assert plugin.offers["inferno_architectures"] == ("V2", "V3")
    assert [(a.name, a.remedy) for a in plugin.set_aside] == [
        ("V1", "Upgrade the plugin."),
        ("V4", "Upgrade inferno."),
    ]


def test_a_quantization_scheme_of_the_version_before_is_read(site: Site) -> None:
    """Whether it says its version or not."""
    old = (
        "QuantScheme(name='{}', owns=lambda parts, config: set(parts) == {{'codes'}}, "
        "nbytes=lambda parts, dtype: 7, layout='odd', {}"
        "load=lambda parts, *, quant_config, dtype: (parts, quant_config, dtype))"
    )
    offer = OFFER.replace("Architecture", "QuantScheme").replace("architectures", "quant_schemes")
    declared = ", ".join([old.format("said", "api_version=1, "), old.format("unsaid", "")])
    site.install("old", offer.format(declared))
    catalog = load_catalog()
    assert not catalog.aside
    codes = TensorInfo("uint8", (2, 3), 6)
    stored = StoredMatrix(path="up_proj", parts={"codes": codes}, quant_config={"bits": 8})
    for name in ("said", "unsaid"):
        item = catalog.named(QuantScheme, name).item
        assert item.refuses(stored) is None
        assert "weight" in str(item.refuses(StoredMatrix(path="a", parts={"weight": codes})))
        assert item.holds(stored, "float32") == HeldMatrix(layout="odd", shape=None, nbytes=7)
        loaded: object = item.load(stored, {"codes": 1}, dtype="float32")
        assert loaded == ({"codes": 1}, {"bits": 8}, "float32")


@pytest.mark.parametrize(
    ("target", "reason"),
    [("nowhere:build", "No module named 'nowhere'"), ("broken_lost:nme", "no attribute 'nme'")],
)
def test_a_path_that_leads_nowhere_names_its_plugin_and_field_when_it_is_called(
    site: Site, target: str, reason: str
) -> None:
    source = f"Architecture(name='Lost', config=dict, build={target!r})"
    site.install("lost", OFFER.format(source))
    declared = load_catalog(disable=["transformers"]).architecture("Lost").item
    with pytest.raises(
        PluginError, match="inferno-lost: Architecture 'Lost', field build"
    ) as caught:
        declared.build({})
    assert target in caught.value.cause and reason in caught.value.cause and caught.value.remedy


def test_a_path_of_a_provider_names_the_op(site: Site) -> None:
    source = OFFER.replace("inferno_architectures", "inferno_kernels").format(
        "KernelProvider(name='lost', refuses=str, ops=dict(silu_mul='nowhere:silu'))"
    )
    site.install("lost", source)
    provider = load_catalog().named(KernelProvider, "lost").item
    with pytest.raises(PluginError, match=r"inferno-lost: KernelProvider 'lost', field ops\['silu"):
        provider.ops["silu_mul"]()


def test_a_broken_plugin_is_fatal_only_when_it_may_be_what_is_needed(
    site: Site, checkpoint: Path
) -> None:
    site.install("crash", "raise RuntimeError('no licence key')")
    with pytest.raises(
        UnsupportedError, match="PebbleForCausalLM.*inferno-crash.*no licence key"
    ) as caught:
        resolve(str(checkpoint), Options(device="cpu", disable=("transformers",)))
    assert "raise RuntimeError('no licence key')" in caught.value.detail, (
        "its own traceback is shown"
    )
    assert load_catalog().architecture("Qwen3ForCausalLM").item.name == "Qwen3ForCausalLM"


def test_a_broken_plugin_that_nothing_needs_does_not_stop_the_fallback(site: Site) -> None:
    site.install("crash", "raise RuntimeError('no licence key')")
    site.install("any", OFFER.format("Architecture(name='*', config=dict, build=dict)"))
    catalog = load_catalog(disable=["transformers"])
    choice = catalog.architecture("PebbleForCausalLM")
    assert choice.item.name == "*"
    assert {r.name: r.reason for r in choice.refusals} == {
        "crash": "set aside: RuntimeError: no licence key"
    }


def test_a_broken_plugin_that_is_known_to_have_it_is_not_passed_over_for_the_fallback(
    site: Site,
) -> None:
    hint = "Hint(kind='architecture', name='PebbleForCausalLM', distribution='inferno-crash')"
    site.install("crash", "raise RuntimeError('no licence key')")
    site.install("fall", "raise RuntimeError('again')")
    site.install("any", OFFER.format("Architecture(name='*', config=dict, build=dict)"))
    site.install("hints", OFFER.replace("inferno_architectures", "inferno_hints").format(hint))
    with pytest.raises(UnsupportedError, match="PebbleForCausalLM.*no licence key") as caught:
        load_catalog(disable=["transformers"]).architecture("PebbleForCausalLM")
    assert "Repair or upgrade inferno-crash." in caught.value.remedy
    assert "--disable crash" in caught.value.remedy and "fall" not in caught.value.remedy
    catalog = load_catalog(disable=["crash", "transformers"])
    assert catalog.architecture("PebbleForCausalLM").item.name == "*"


def test_a_disabled_plugin_is_not_even_imported(site: Site) -> None:
    site.install("crash", "raise RuntimeError('no licence key')")
    for name in ("crash", "inferno-crash"):
        catalog = load_catalog(disable=[name])
        assert not catalog.broken
        assert [p.name for p in catalog.plugins if p.disabled] == ["crash"]


def test_only_keeps_what_is_named_and_the_built_in(site: Site) -> None:
    site.install("pebble", OFFER.format(PEBBLE))
    catalog = load_catalog(only=["pebble"])
    assert {p.name for p in catalog.plugins if not p.disabled} == {"builtin", "pebble"}
    with pytest.raises(UnsupportedError, match="Qwen3ForCausalLM"):
        catalog.architecture("Qwen3ForCausalLM")


def test_switching_off_what_is_not_installed_is_an_error() -> None:
    for switch in ("disable", "only"):
        with pytest.raises(OptionError, match="no plugin is called typo"):
            load_catalog(**{switch: ["typo"]})


def test_a_tie_names_both_distributions_and_the_way_out(site: Site) -> None:
    site.install("one", OFFER.format(PEBBLE))
    site.install("two", OFFER.format(PEBBLE))
    with pytest.raises(PluginError) as caught:
        load_catalog().architecture("PebbleForCausalLM")
    assert "inferno-one and inferno-two" in caught.value.cause
    assert "--disable inferno-one" in caught.value.remedy
    assert (
        load_catalog(disable=["inferno-one"]).architecture("PebbleForCausalLM").offer.distribution
        == "inferno-two"
    )


def test_backends_of_equal_priority_are_a_tie_and_of_unequal_are_not(site: Site) -> None:
    hook = OFFER.replace("inferno_architectures", "inferno_cache_policies")
    site.install("one", hook.format("CachePolicy(name='one', build='a:b', priority=7)"))
    site.install("two", hook.format("CachePolicy(name='two', build='a:b', priority=7)"))
    with pytest.raises(PluginError, match="inferno-one and inferno-two"):
        load_catalog().cache_policy()
    site.install("three", hook.format("CachePolicy(name='three', build='a:b', priority=8)"))
    choice = load_catalog().cache_policy()
    assert choice.item.name == "three"
    assert {r.name: r.reason for r in choice.refusals}["two"] == "priority 7, three has 8"


def test_a_name_that_is_offered_twice_is_an_error_only_when_chosen(site: Site) -> None:
    hook = OFFER.replace("inferno_architectures", "inferno_cache_policies")
    site.install("two", hook.format("CachePolicy(name='lru', build='a:b', priority=-50)"))
    assert load_catalog().cache_policy().offer.distribution == "inferno"
    with pytest.raises(PluginError, match="inferno and inferno-two"):
        load_catalog().cache_policy("lru")


# --- commands that cannot be run ------------------------------------------------------------------

COMMAND = """
import click
from inferno import hookimpl
from inferno.contracts import Command
@hookimpl
def inferno_commands():
    return [Command(name={name!r}, help="Do it.", command={command!r})]
@click.command()
def go(): click.echo("gone")
number = 7
"""


def invoke(*args: str) -> Result:
    return CliRunner().invoke(cli, args)


def install_command(site: Site, name: str, command: str, plugin: str = "doer") -> None:
    source = COMMAND.format(name=name, command=f"broken_{plugin}:{command}")
    site.install(plugin, source, group="inferno.commands")


def test_a_command_of_a_plugin_is_listed_and_run(site: Site) -> None:
    install_command(site, "do", "go")
    assert "Do it." in invoke("--help").output
    assert invoke("do").output == "gone\n"
    assert "Did you mean `inferno do`?" in invoke("doo").output


def test_a_plugin_cannot_take_a_command_of_inferno(site: Site) -> None:
    install_command(site, "explain", "go")
    assert "Do it." not in invoke("--help").output
    assert "plugins would run" in invoke("explain", "--help").output


@pytest.mark.parametrize(
    ("command", "reason"), [("number", "It must be a click.Command"), ("absent", "cannot be imp")]
)
def test_a_command_that_is_none_is_an_error_of_its_plugin(
    site: Site, command: str, reason: str
) -> None:
    install_command(site, "do", command)
    result = invoke("do")
    assert result.exit_code == 5 and "inferno-doer" in result.output and reason in result.output


def test_two_commands_of_one_name_are_refused_when_it_is_run(site: Site) -> None:
    install_command(site, "do", "go")
    install_command(site, "do", "go", plugin="other")
    assert invoke("--help").exit_code == 0
    result = invoke("do")
    assert result.exit_code == 5 and "inferno-doer and inferno-other" in result.output


def test_the_command_of_a_broken_plugin_says_what_is_broken(site: Site) -> None:
    site.install("do", "import a_library_that_is_not_here", group="inferno.commands")
    assert invoke("--help").exit_code == 0
    result = invoke("do")
    assert result.exit_code == 2 and "inferno-do did not" in result.output


def test_a_hook_is_asked_in_its_own_group_of_entry_points(site: Site) -> None:
    site.install("doer", COMMAND.format(name="do", command="broken_doer:go"))
    [plugin] = load_catalog().broken
    assert plugin.error == (
        "PluginError: inferno_commands is no hook of the entry-point group 'inferno'"
    )
    assert plugin.remedy.startswith("Register its module in the group 'inferno.commands'.")


def test_switches_know_plugins_of_every_group(site: Site) -> None:
    install_command(site, "do", "go")
    assert not load_catalog(disable=["doer"]).aside
    catalog = load_catalog(disable=["doer"], groups=["inferno.commands"])
    assert [p.name for p in catalog.plugins if p.disabled] == ["doer"]
