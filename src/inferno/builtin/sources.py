"""The built-in sources of models: this machine, and the Hugging Face hub.

The hub's own client does the work (cache, resume, etags, tokens, `HF_*` variables); this module
selects the files and turns its errors into ones a user can act on. It is imported on first use, so
that listing plugins stays cheap.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from inferno.contracts import (
    MODEL_FILES,
    OTHER_FILES,
    FetchOptions,
    Source,
    encoders_beside,
    is_encoder_file,
    parts_of,
)
from inferno.errors import InfernoError, ModelNotFoundError, OptionError

PATIENCE, PATIENCE_IF_HERE = 10.0, 2.0
"""Seconds to wait for the hub's answer: to each question, and to the first if the model is already
on this machine."""

_LOG = logging.getLogger(__name__)
_PART = r"[A-Za-z0-9][\w.-]*"
_REF = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:/(?P<file>{_PART}(?:/{_PART})*))?(?:@(?P<revision>[\w./-]+))?",
    re.A,
)


def is_local(ref: str) -> bool:
    return bool(ref) and os.path.exists(os.path.expanduser(ref))  # those of `Path` may raise


def fetch_local(ref: str, options: FetchOptions) -> Path:
    if options.revision:
        raise OptionError(f"{ref} is a local path: it has no revisions", "Remove --revision.")
    # Not resolved: in a hub's cache, links have file names, their targets do not.
    return Path(os.path.expanduser(ref)).absolute()


def is_hub(ref: str) -> bool:
    return _REF.fullmatch(ref) is not None


def fetch_hub(ref: str, options: FetchOptions) -> Path:
    """Download the missing files of a model, or one of its files, into the hub's cache."""
    wanted = _HubRef.parse(ref, options.revision)
    with _limited():
        with _explained(wanted, options):
            path = _fetched(wanted, options)
        if not wanted.file and not any(path.glob("*.safetensors")):
            raise ModelNotFoundError(
                f"{wanted.repo} has no safetensors weights", _other_weights(wanted, options)
            )
    return path


def _fetched(wanted: _HubRef, options: FetchOptions) -> Path:
    here = _on_disk(wanted, options)
    if options.offline:
        return _download(wanted, options, offline=True)
    answer = _asked(wanted, PATIENCE_IF_HERE if here else PATIENCE)
    if answer is None:
        if here is None:
            raise _not_here(wanted, options)
        _LOG.warning("the hub does not answer: taking %s as it is on this machine", wanted.repo)
        return here
    matches = encoders_beside(wanted.file, answer) if wanted.file and options.encoder else []
    encoders = [] if wanted.file and is_encoder_file(wanted.file) else matches[:1]
    return _download(wanted, options, offline=False, beside=encoders)


def _download(
    wanted: _HubRef, options: FetchOptions, *, offline: bool, beside: Sequence[str] = ()
) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    common: dict[str, Any] = {
        "revision": wanted.revision,
        "local_files_only": offline,
        "library_name": "inferno",
        "tqdm_class": None if options.progress else _silent_bar(),
    }
    if wanted.file:
        files = {
            part: Path(hf_hub_download(wanted.repo, part, **common))
            for part in (*parts_of(wanted.file), *beside)
        }
        return files[wanted.file]
    common |= {"allow_patterns": list(MODEL_FILES), "ignore_patterns": list(OTHER_FILES)}
    return Path(snapshot_download(wanted.repo, **common))


def _on_disk(wanted: _HubRef, options: FetchOptions) -> Path | None:
    """Return what is wanted if all of it was downloaded before, whatever the hub has now."""
    from huggingface_hub import errors

    try:
        return _download(wanted, options, offline=True)
    except errors.LocalEntryNotFoundError:
        return None


def _asked(wanted: _HubRef, seconds: float) -> list[str] | None:
    """Return the paths of a repository's files; none if the hub refuses to say, which the download
    explains; None if it accepts a question and leaves it open. Asked first, because the client
    repeats its own questions for minutes."""
    from huggingface_hub import HfApi, constants, get_session

    if constants.HF_HUB_OFFLINE:
        return []
    http = sys.modules[type(get_session()).__module__.partition(".")[0]]  # httpx, or httpx2
    try:
        info = HfApi(library_name="inferno").model_info(
            wanted.repo, revision=wanted.revision, timeout=seconds
        )
    except http.TimeoutException:
        return None
    except Exception:  # it answers: the download says what is wrong
        return []
    return [sibling.rfilename for sibling in info.siblings or []]


@contextmanager
def _limited() -> Iterator[None]:
    """Context in which the client waits `PATIENCE` for each read that it would await without
    end."""
    from huggingface_hub import get_session

    def limit(request: Any) -> None:
        limits = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {
            step: PATIENCE if limits.get(step) is None else limits[step]
            for step in ("connect", "read", "write", "pool")
        }

    client = get_session()
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "request": [*hooks["request"], limit]}
    try:
        yield
    finally:
        client.event_hooks = hooks


def cached() -> Collection[str]:
    """Return the model ids in the hub's cache on this machine."""
    from huggingface_hub import constants

    paths = Path(constants.HF_HUB_CACHE).glob("models--*--*/snapshots")
    return sorted(path.parent.name.removeprefix("models--").replace("--", "/", 1) for path in paths)


LOCAL = Source(
    name="local",
    describe="a directory or file on this machine",
    matches=is_local,
    fetch=fetch_local,
    priority=20,
)
HUB = Source(
    name="hub",
    describe="a Hugging Face id: org/name (as at huggingface.co/models), org/name@revision, or one "
    "file of it: org/name/file.gguf",
    matches=is_hub,
    fetch=fetch_hub,
    list=cached,
)


@frozen
class _HubRef:
    repo: str
    file: str | None
    revision: str | None

    @classmethod
    def parse(cls, ref: str, revision: str | None) -> _HubRef:
        match = _REF.fullmatch(ref)
        assert match, f"is_hub() accepted {ref!r}"
        if revision and match["revision"] and revision != match["revision"]:
            raise OptionError(
                f"{ref} and --revision {revision} are different revisions", "Give only one."
            )
        return cls(match["repo"], match["file"], match["revision"] or revision)


@contextmanager
def _explained(wanted: _HubRef, options: FetchOptions) -> Iterator[None]:
    """Turn every failure of a fetch into an error with a remedy."""
    from huggingface_hub import constants, errors

    repo, hub = wanted.repo, constants.ENDPOINT
    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelNotFoundError(
            f"{repo} is gated, and this account has no access",
            f"Request access at {hub}/{repo}, then set HF_TOKEN or run `hf auth login`.",
        ) from error
    except errors.RepositoryNotFoundError as error:
        near = difflib.get_close_matches(repo, cached(), n=3, cutoff=0.5)
        raise ModelNotFoundError(
            f"There is no model {repo} on this machine or at {hub}, or it is private",
            (f"On this machine: {', '.join(near)}. " if near else "Check the spelling. ")
            + "For a private model, set HF_TOKEN or run `hf auth login`.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFoundError(
            f"{repo} has no revision {wanted.revision}",
            f"Its branches and tags are listed at {hub}/{repo}/tree/main.",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        answer = error.__cause__  # what kept the client from asking for the files
        if isinstance(answer, errors.HfHubHTTPError) and not options.offline:
            raise _answered(wanted, answer.response.status_code) from error
        raise _not_here(wanted, options) from error
    except errors.EntryNotFoundError as error:
        raise ModelNotFoundError(
            f"{repo} has no file {wanted.file}", _other_weights(wanted, options)
        ) from error
    except errors.HfHubHTTPError as error:
        raise _answered(wanted, error.response.status_code) from error
    except errors.HFValidationError as error:
        raise ModelNotFoundError(
            f"{repo} is not a model id: {error}", "Write it as OWNER/NAME."
        ) from error
    except InfernoError:
        raise
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # disk full, a hostile file name, a transfer cut short
        raise InfernoError(
            f"Fetching {repo} failed: {error}", "Run it again: completed files are kept."
        ) from error


def _answered(wanted: _HubRef, status: int) -> InfernoError:
    """The error for an unexpected answer. A hub at fault does not say that the model is missing."""
    from huggingface_hub import constants

    cause = f"{constants.ENDPOINT} answered {status} for {wanted.repo}"
    if status >= 500:
        return InfernoError(
            cause, "Try again later: the hub has a fault. Or name a model on this machine."
        )
    return ModelNotFoundError(
        cause, "Try again later; for 401 and 403, set HF_TOKEN or run `hf auth login`."
    )


def _not_here(wanted: _HubRef, options: FetchOptions) -> ModelNotFoundError:
    from huggingface_hub import constants

    pull = f"inferno pull {wanted.repo}" + (f"/{wanted.file}" if wanted.file else "")
    pull += f" --revision {wanted.revision}" if wanted.revision else ""
    if options.offline or constants.HF_HUB_OFFLINE:
        return ModelNotFoundError(
            f"{wanted.repo} is missing or incomplete on this machine, and inferno is offline",
            f"When online, run `{pull}` without --offline and HF_HUB_OFFLINE.",
        )
    return ModelNotFoundError(
        f"{wanted.repo} is missing or incomplete on this machine, and {constants.ENDPOINT} "
        f"cannot be reached",
        f"Check the network (HF_ENDPOINT, HTTPS_PROXY), then run `{pull}`; or name a directory.",
    )


def _other_weights(wanted: _HubRef, options: FetchOptions) -> str:
    """Return a remedy that names files to use instead."""
    from huggingface_hub import HfApi

    remedy = f"Name one of its files, as in {wanted.repo}/model.gguf."
    if options.offline:
        return remedy
    try:
        files = HfApi(library_name="inferno").list_repo_files(wanted.repo, revision=wanted.revision)
    except Exception:  # listing files is optional: the original error matters more
        return remedy
    weights = [file for file in files if file.endswith((".gguf", ".safetensors"))]
    near = (
        difflib.get_close_matches(wanted.file or "", weights, n=5, cutoff=0.3)
        or sorted(weights)[:5]
    )
    if not near:
        return "Choose another repository: this one has neither safetensors nor GGUF files."
    return "Name one of its files: " + ", ".join(f"{wanted.repo}/{file}" for file in near) + "."


def _silent_bar() -> Any:
    import huggingface_hub.utils

    client: Any = huggingface_hub.utils

    class Silent(client.tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    return Silent
