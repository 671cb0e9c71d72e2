"""Fetches models from ModelScope.

Its client downloads (resume, hashes, locks, `MODELSCOPE_*` variables) into its own cache, where its
command finds them, too. This module selects the files, checks their names before anything is
written, and turns the client's errors into ones with a remedy. Beside each snapshot it keeps the
listing that the snapshot was made from: the client would read every file anew at each start to
compare hashes, and could not tell a part of a model from all of it.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import requests
from attrs import define, frozen
from modelscope_hub import HubApi, HubConfig, TqdmCallback, errors

from inferno.contracts import (
    FetchOptions,
    encoders_beside,
    is_encoder_file,
    is_part_of_model,
    parts_of,
)
from inferno.errors import InfernoError, ModelNotFoundError, OptionError
from inferno_modelscope import PREFIX

PATIENCE, PATIENCE_IF_HERE = 10.0, 2.0
"""Seconds to wait for the hub's first answer: at all, and if the model is on this machine."""
DEFAULT_REVISION = "master"

_LOG = logging.getLogger(__name__)
_PART = r"[A-Za-z0-9_][\w.-]*"
_REF = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:/(?P<file>{_PART}(?:/{_PART})*))?(?:@(?P<revision>{_PART}(?:/{_PART})*))?",
    re.A,
)


@frozen
class Wanted:
    """What a reference names."""

    repo: str
    file: str
    """One file of it; empty for the model with safetensors."""
    revision: str

    @classmethod
    def parse(cls, ref: str, revision: str | None) -> Wanted:
        """Raises ModelNotFoundError, OptionError."""
        match = _REF.fullmatch(ref.removeprefix(PREFIX))
        if match is None:
            raise ModelNotFoundError(
                f"{ref[:200]!r} is not a ModelScope id",
                f"Write {PREFIX}OWNER/NAME, or {PREFIX}OWNER/NAME/FILE for one file of it.",
            )
        if revision is not None and _REF.fullmatch(f"a/b@{revision}") is None:
            raise OptionError(f"{revision[:200]!r} is not a revision", "Name a branch or a tag.")
        if revision and match["revision"] and revision != match["revision"]:
            raise OptionError(
                f"{ref} and --revision {revision} are different revisions", "Give only one."
            )
        return cls(
            match["repo"],
            match["file"] or "",
            match["revision"] or revision or DEFAULT_REVISION,
        )

    def ref(self) -> str:
        at = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{PREFIX}{self.repo}{self.file and '/'}{self.file}{at}"

    def includes(self, path: str) -> bool:
        return path in parts_of(self.file) if self.file else is_part_of_model(path)


@frozen
class Listed:
    """A file of a model, as the hub lists it."""

    path: str
    size: int
    """In bytes; 0 if the hub does not say."""
    sha256: str | None


def fetch(ref: str, options: FetchOptions) -> Path:
    """Download the missing files of a model, or one of its files. Raises ModelNotFoundError,
    InfernoError."""
    wanted, config = Wanted.parse(ref, options.revision), HubConfig()
    snapshot = Snapshot.of(wanted, config)
    here = snapshot.is_complete(wanted)
    if options.offline or _is_silent(wanted, config, PATIENCE_IF_HERE if here else PATIENCE):
        if not here:
            raise _not_here(wanted, config)
        if not options.offline:
            _LOG.warning("the hub does not answer: taking %s as it is on this machine", ref)
    else:
        with _explained(wanted, config):
            api = HubApi(config)
            files = _selected(wanted, api, encoder=options.encoder)
            _download(wanted, api, files, snapshot, progress=options.progress)
    return snapshot.folder / wanted.file


def references() -> Collection[str]:
    """Return the models of which all files are on this machine."""
    config = HubConfig()
    refs = set[str]()
    for record in _models(config).glob("*--*/inferno/*.json"):
        repo = record.parent.parent.name.replace("--", "/", 1)
        wanted = Wanted(repo, "", record.stem)
        if Snapshot.of(wanted, config).is_complete(wanted):
            refs.add(wanted.ref())
    return sorted(refs)


# --- what the hub has -----------------------------------------------------------------------------


def _is_silent(wanted: Wanted, config: HubConfig, seconds: float) -> bool:
    """Whether the hub cannot be reached, or accepts a question and leaves it open. Asked first: the
    client repeats its own questions for minutes."""
    try:
        url = f"{config.endpoint}/api/v1/models/{wanted.repo}"
        with requests.get(url, timeout=seconds, stream=True):
            return False  # whatever it answers: the client says what is wrong
    except (requests.ConnectionError, requests.Timeout):
        return True


def _selected(wanted: Wanted, api: HubApi, *, encoder: bool) -> list[Listed]:
    """Return the files to download, with the encoder of images beside a GGUF file. Raises
    ModelNotFoundError if what is wanted is not there."""
    listed = [
        Listed(entry.path, entry.size, entry.sha256)
        for entry in api.list_repo_files(wanted.repo, "model", revision=wanted.revision)
        if not entry.is_dir
    ]
    alone = not encoder or not wanted.file or is_encoder_file(wanted.file)
    beside = [] if alone else encoders_beside(wanted.file, [file.path for file in listed])[:1]
    files = [file for file in listed if wanted.includes(file.path) or file.path in beside]
    for file in files:
        parts = PurePosixPath(file.path).parts
        if not parts or ".." in parts or file.path.startswith("/") or not file.path.isprintable():
            raise InfernoError(
                f"ModelScope lists {file.path[:200]!r}, a path that leads out of the model",
                f"Do not use {wanted.repo}.",
            )
    missing = sorted({*parts_of(wanted.file)} - {file.path for file in files})
    if wanted.file and missing:
        raise ModelNotFoundError(
            f"{wanted.repo} has no file {missing[0]} in {wanted.revision}",
            _other_weights(wanted, listed),
        )
    if not wanted.file and not any(file.path.endswith(".safetensors") for file in files):
        raise ModelNotFoundError(
            f"{wanted.repo} has no safetensors weights in {wanted.revision}",
            _other_weights(wanted, listed),
        )
    return files


def _other_weights(wanted: Wanted, listed: Sequence[Listed]) -> str:
    weights = sorted(file.path for file in listed if file.path.endswith((".gguf", ".safetensors")))
    if not weights:
        return "Choose another model: this one has neither safetensors nor GGUF files."
    some = ", ".join(f"{PREFIX}{wanted.repo}/{path}" for path in weights[:5])
    return f"Name one of its files: {some}."


# --- what is on this machine ----------------------------------------------------------------------


@define
class Snapshot:
    """What was fetched of a revision: a folder of files, and a record beside it."""

    folder: Path
    record: Path
    files: dict[str, Listed]
    """Path -> the file as it was listed when it was downloaded."""
    finished: set[str]
    """Of which references all files were downloaded: `Wanted.file`."""

    @classmethod
    def of(cls, wanted: Wanted, config: HubConfig) -> Snapshot:
        """Where the client's own commands look for it. A record that cannot be read is empty."""
        repo = _models(config) / wanted.repo.replace("/", "--")
        folder, record = repo / "snapshots" / wanted.revision, repo / "inferno" / wanted.revision
        record = record.with_name(f"{record.name}.json")
        try:
            content: Any = json.loads(record.read_text(encoding="utf-8"))
            files = {str(path): Listed(str(path), int(n), sha) for path, n, sha in content["files"]}
            return cls(folder, record, files, set(content["finished"]))
        except (OSError, ValueError, TypeError, LookupError):
            return cls(folder, record, {}, set())

    def has(self, file: Listed) -> bool:
        """Whether the file was downloaded as it is listed. It is not read: it may have 100 GB."""
        return self.files.get(file.path) == file and self._is_whole(file)

    def is_complete(self, wanted: Wanted) -> bool:
        files = [file for file in self.files.values() if wanted.includes(file.path)]
        return wanted.file in self.finished and all(map(self._is_whole, files))

    def _is_whole(self, file: Listed) -> bool:
        path = self.folder / file.path
        return path.is_file() and file.size in (0, path.stat().st_size)

    def keep(self) -> None:
        rows = [attrs.astuple(file) for file in self.files.values()]
        text = json.dumps({"files": rows, "finished": sorted(self.finished)})
        self.record.parent.mkdir(parents=True, exist_ok=True)
        new = self.record.with_name(f"{self.record.name}.{os.getpid()}")
        new.write_text(text, encoding="utf-8")
        new.replace(self.record)


def _download(
    wanted: Wanted, api: HubApi, files: Sequence[Listed], snapshot: Snapshot, *, progress: bool
) -> None:
    """Download what is missing or was changed. What is cut short is not complete."""
    missing = [file for file in files if not snapshot.has(file)]
    if missing:
        snapshot.finished.clear()  # another revision of the same branch, perhaps
    for file in missing:
        api.downloader.download_file(
            wanted.repo,
            "model",
            file.path,
            revision=wanted.revision,
            local_dir=snapshot.folder,
            expected_sha256=file.sha256,
            file_size=file.size or None,
            progress_callbacks=[TqdmCallback] if progress else [],
        )
        snapshot.files[file.path] = file
        snapshot.keep()
    if wanted.file not in snapshot.finished:
        snapshot.finished.add(wanted.file)
        snapshot.keep()


def _models(config: HubConfig) -> Path:
    return Path(config.cache_dir) / "models"


# --- errors ---------------------------------------------------------------------------------------


@contextmanager
def _explained(wanted: Wanted, config: HubConfig) -> Iterator[None]:
    """Turn every failure of a fetch into an error with a remedy."""
    hub = config.endpoint
    try:
        yield
    except (errors.AuthenticationError, errors.PermissionDeniedError) as error:
        raise ModelNotFoundError(
            f"{hub} does not give {wanted.repo} to this account",
            "Set MODELSCOPE_API_TOKEN to a token that may read it.",
        ) from error
    except errors.NotExistError as error:
        raise ModelNotFoundError(
            f"There is no model {wanted.repo} with the revision {wanted.revision} at {hub}, or it "
            "is private",
            "Check the spelling. For a private model, set MODELSCOPE_API_TOKEN.",
        ) from error
    except errors.NetworkError as error:
        raise _not_here(wanted, config) from error
    except InfernoError:
        raise
    except (errors.HubError, requests.RequestException, OSError, ValueError) as error:
        raise InfernoError(
            f"Fetching {wanted.repo} from {hub} failed: {_first_line(error)}",
            "Run it again: completed files are kept.",
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _not_here(wanted: Wanted, config: HubConfig) -> ModelNotFoundError:
    ref = wanted.ref()
    return ModelNotFoundError(
        f"{ref} is missing or incomplete on this machine, and {config.endpoint} was not reached",
        f"With a network (MODELSCOPE_ENDPOINT, HTTPS_PROXY), run `inferno pull {ref}`; or name a "
        "directory.",
    )
