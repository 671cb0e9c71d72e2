"""Options of instances of which one computes prompts for the other."""

from __future__ import annotations

from functools import partial
from typing import Any

import rich_click as click

from inferno.errors import OptionError

PD_URL = "shm://pd"
"""Where the two instances meet that `--pd-server` and `--pd-client` start on one machine."""
_engine = partial(click.option, panel="Engine")

LINK_OPTIONS = [
    _engine(
        "--prefill-for",
        metavar="URL",
        help="Compute prompts for other instances, which connect to this URL: shm://NAME on "
        "one machine, tcp://HOST:PORT from others, tcp://HOST+HOST:PORT with --nodes.",
    ),
    _engine(
        "--decode-with",
        metavar="URL",
        multiple=True,
        callback=lambda context, option, urls: ",".join(urls) or None,  # not set: not ()
        help="Have long prompts computed by the instance that listens at this URL, and pull "
        "the blocks of its cache. Of several URLs, repeated or separated by commas, each prompt "
        "goes to the one that will be done with it first.",
    ),
    _engine(
        "--pd-token-file",
        metavar="FILE",
        help="File with the secret that both instances know; tcp needs one.",
    ),
    _engine(
        "--pd-min-tokens",
        type=int,
        help="Least tokens of a prompt that is sent out. [default: 128]",
    ),
    _engine(
        "--pd-min-uncached",
        type=int,
        help="Least tokens to compute of one whose beginning is cached. [default: 1024]",
    ),
    _engine(
        "--pd-timeout",
        type=float,
        metavar="SECONDS",
        help="Compute a prompt here that was sent out so long ago. [default: 120]",
    ),
    _engine(
        "--pd-buffer",
        metavar="SIZE",
        help="Limit of blocks on their way between instances. [default: 1GiB]",
    ),
    _engine(
        "--pd-server",
        is_flag=True,
        default=None,
        help="Only compute prompts for others, without HTTP: --prefill-for the --pd-url.",
    ),
    _engine("--pd-client", is_flag=True, default=None, help="--decode-with the --pd-url."),
    _engine("--pd-url", metavar="URL", help="Of the prefill instance. [default: shm://pd]"),
]


def fold_roles(given: dict[str, Any]) -> None:
    """Replace vllm.rs's names of the two instances by ours."""
    server, client = given.pop("pd_server", None), given.pop("pd_client", None)
    url = given.pop("pd_url", None)
    if url is not None and not server and not client:
        raise OptionError(
            "--pd-url is set, and neither --pd-server nor --pd-client",
            "Say which of the two instances this is.",
        )
    for is_set, name in ((server, "prefill_for"), (client, "decode_with")):
        if is_set:
            given.setdefault(name, url or PD_URL)
