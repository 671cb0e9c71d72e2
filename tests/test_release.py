"""What a release says of what it installs: hashes, and bills of materials."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from email.message import Message
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import lock  # noqa: E402
import urls  # noqa: E402

LOCKED = re.findall(
    r"^([a-z0-9.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n",
    lock.LOCK.read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_the_lock_has_what_the_distributions_need_as_constrained() -> None:
    """Else: make lock."""
    versions = lock.constrained()
    names = {name for name in lock.needed(lock.roots(), lock.BY_BUILD) if not lock.is_ours(name)}
    assert {name: pin for name, pin, _ in LOCKED} == {name: versions[name] for name in names}


def test_the_lock_has_nothing_but_hashed_versions() -> None:
    """pip refuses all of it otherwise, or installs what nobody has looked at."""
    text = lock.LOCK.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith(("#", "    --hash="))]
    assert len(lines) == len(LOCKED) > 60
    assert not {"torch", "triton"} & {name for name, *_ in LOCKED}


def test_the_container_installs_by_hashes() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
    [run] = [line for line in text.splitlines() if line.startswith("RUN pip")]
    commands = [each.split() for each in run.removeprefix("RUN ").split("&&")]
    installs = [each for each in commands if each[:2] == ["pip", "install"]]
    assert installs[0][-1] == "torch"
    assert "--require-hashes" in installs[1]
    assert installs[1][-1] == "deploy/requirements.lock"
    assert all("--no-deps" in each for each in installs[2:])


def test_a_bill_names_what_a_wheel_needs(tmp_path: Path) -> None:
    import sbom  # two seconds

    about = Message()
    for name, value in {
        "Metadata-Version": "2.4",
        "Name": "Inferno_Toy",
        "Version": "1.2",
        "License-Expression": "Apache-2.0",
        "Requires-Dist": "attrs>=24; python_version > '3'",
    }.items():
        about[name] = value
    about["Requires-Dist"] = "cattrs"
    about["Requires-Dist"] = "pytest; extra == 'test'"
    wheel = tmp_path / "inferno_toy-1.2-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("inferno_toy-1.2.dist-info/METADATA", about.as_string())
    bill = json.loads(sbom.bill(wheel))
    subject = bill["metadata"]["component"]
    assert subject["purl"] == "pkg:pypi/inferno-toy@1.2"
    assert subject["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert len(subject["hashes"][0]["content"]) == 64
    needs = {each["ref"]: set(each.get("dependsOn", ())) for each in bill["dependencies"]}
    attrs, cattrs = (f"pkg:pypi/{name}@{version(name)}" for name in ("attrs", "cattrs"))
    assert needs[subject["bom-ref"]] == {attrs, cattrs}
    assert attrs in needs[cattrs], "what cattrs itself needs"
    assert not any("pytest@" in each for each in needs)


def test_wheels_say_where_the_repository_is_that_built_them(tmp_path: Path) -> None:
    page = "https://example.org/us/inferno"
    for folder in (".", "plugins/models/inferno-qwen3"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / folder / "pyproject.toml", tmp_path / folder)
    with pytest.raises(SystemExit, match="https"):
        urls.write(tmp_path, "http://example.org/us/inferno", "v2")
    assert urls.write(tmp_path, f"{page}/", "v2") == 2
    kernel, plugin = (
        tomllib.loads((tmp_path / folder / "pyproject.toml").read_text(encoding="utf-8"))
        for folder in (".", "plugins/models/inferno-qwen3")
    )
    assert kernel["project"]["urls"] == {
        "Source": f"{page}/tree/v2",
        "Documentation": f"{page}/tree/v2/docs",
        "Changelog": f"{page}/blob/v2/CHANGELOG.md",
        "Issues": f"{page}/issues",
    }
    source = f"{page}/tree/v2/plugins/models/inferno-qwen3"
    assert plugin["project"]["urls"] == {**kernel["project"]["urls"], "Source": source}
    with pytest.raises(SystemExit, match="has URLs"):
        urls.write(tmp_path, page, "v2")


@pytest.mark.parametrize(
    ("workflow", "builds"), [("release", "make wheels"), ("wheels", "cibuild")]
)
def test_workflows_write_urls_before_they_build(workflow: str, builds: str) -> None:
    text = (ROOT / ".github" / "workflows" / f"{workflow}.yml").read_text(encoding="utf-8")
    [job] = yaml.safe_load(text)["jobs"].values()
    runs = [step.get("run", "") for step in job["steps"]]
    writes = next(i for i, run in enumerate(runs) if "tools/urls.py" in run)
    assert writes < next(i for i, run in enumerate(runs) if builds in run)


def test_a_release_attests_every_file_with_no_more_rights_than_that_takes() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    [job] = workflow["jobs"].values()
    uses = [step.get("uses", step.get("run", "")) for step in job["steps"]]
    attest = next(i for i, use in enumerate(uses) if "attest-build-provenance" in use)
    publish = next(i for i, use in enumerate(uses) if "gh release" in use)
    assert attest < publish
    assert job["steps"][attest]["with"]["subject-path"] == "dist/*"


def test_workflows_name_actions_by_commit() -> None:
    """Whoever moves a tag of an action would run code in a release."""
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    uses = [
        line.partition("uses:")[2].strip()
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert len(uses) > 10
    assert [use for use in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", use)] == []
