"""The environment of the processes that run a model. Imports next to nothing."""

from __future__ import annotations

import os
import re

_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CRED|AUTH|^INFERNO_STORE$")
_OURS = re.compile(r"(HF|HUGGING_?FACE|INFERNO)_|PG")
"""Prefixes of the server's own variables: a hub's token, options such as `--api-key`, and what
connects to the database of `--store`."""
_KEPT = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|TZ|XDG_CACHE_HOME|HF_HOME|HF_HUB_CACHE"
    r"|VIRTUAL_ENV|LD_LIBRARY_PATH|LD_PRELOAD"
    r"|(LC|PYTHON|OMP|GOMP|KMP|MKL|OPENBLAS|DNNL|ONEDNN|TORCH|ATEN|MALLOC|GLIBC|INFERNO)_?.*"
)
"""What a confined process may see, if it does not look like a secret."""


def environment(folder: str | None = None) -> dict[str, str]:
    """Return the variables for a process that runs a model: this process's, without the hub's token
    and inferno's keys, which it never needs. With a `folder`, it is to be confined, and that is
    where its temporary files go: of the variables it gets those of an allow list, and imports
    nothing from the folder that the user is in."""
    if folder is None:
        return {k: v for k, v in os.environ.items() if not (_OURS.match(k) and _SECRET.search(k))}
    variables = {
        name: value
        for name, value in os.environ.items()
        if _KEPT.fullmatch(name) and not _SECRET.search(name)
    }
    return variables | {"TMPDIR": folder, "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}
