"""Options of `inferno serve` for its address, its clients and its limits."""

from __future__ import annotations

from functools import partial
from typing import Any

import rich_click as click
from attrs import frozen

from inferno.cli.images import IMAGE_LIMITS
from inferno.cli.options import FiniteRange, together

_network = partial(click.option, panel="Network")
_limits = partial(click.option, panel="Limits")


def _mode(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Check file permissions in octal."""
    try:
        mode = int(value, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise click.BadParameter(f"{value} is not a mode like 660", ctx, param)
    return value


network_options = together(
    [
        _network("--uds", metavar="PATH", help="Listen on a Unix socket instead of --host."),
        _network(
            "--uds-mode",
            metavar="MODE",
            callback=_mode,
            default="600",
            help="Permissions of the Unix socket; 660 lets its group connect.",
        ),
        _network("--ssl-certfile", metavar="FILE", help="PEM certificate: serve over TLS."),
        _network("--ssl-keyfile", metavar="FILE", help="PEM private key of the certificate."),
        _network(
            "--allowed-hosts",
            multiple=True,
            metavar="NAME",
            help="Name by which clients may call the server, * for any; may be repeated. "
            "[default: this machine's on loopback, else any]",
        ),
        _network(
            "--cors-origin",
            "cors_origins",
            multiple=True,
            metavar="ORIGIN",
            help="Web page that may use the server, such as https://chat.example.org, * for any; "
            "may be repeated.",
        ),
        _limits(
            "--max-waiting",
            type=click.IntRange(0),
            default=1024,
            help="Maximum number of waiting requests; more get a 429.",
        ),
        _limits(
            "--max-wait",
            type=FiniteRange(0, min_open=True),
            help="Seconds that a request may be expected to wait for its first token; else it gets "
            "a 429 that says when to try again. [default: unlimited]",
        ),
        _limits(
            "--max-body-bytes",
            type=click.IntRange(1),
            default=64 * 2**20,
            help="Largest body of a request; a larger one gets a 413.",
        ),
        _limits(
            "--request-timeout",
            type=FiniteRange(0, min_open=True),
            help="Seconds that an answer may take; then it ends with a 504. [default: unlimited]",
        ),
        _limits(
            "--engine-timeout",
            type=FiniteRange(0),
            default=45,
            help="Seconds after which an engine process is replaced that gives no sign of life, or "
            "whose step takes over 20 times what it should; 0 for never.",
        ),
        _limits(
            "--max-failed-starts",
            type=click.IntRange(1),
            help="Starts of an engine that fail one after another before the server ends with "
            "code 1, for others to start it anew. [default: it goes on trying]",
        ),
        *IMAGE_LIMITS,
    ]
)


@frozen
class Network:
    """The values of these options, for those that need them."""

    server: dict[str, Any]
    """For `run_server`."""
    app: dict[str, Any]
    """For `create_app`."""
    engine_timeout: float

    @classmethod
    def taken(cls, values: dict[str, Any]) -> Network:
        """Take the options out of a command's values."""
        from inferno.images.limits import ImageLimits

        values["uds_mode"] = int(values["uds_mode"], 8)
        server = ("uds", "uds_mode", "ssl_certfile", "ssl_keyfile", "max_failed_starts")
        app = ("cors_origins", "max_waiting", "max_wait", "max_body_bytes", "request_timeout")
        hosts = values.pop("allowed_hosts")
        named: dict[str, Any] = {"allowed_hosts": hosts} if hosts else {}
        images = values.pop("allow_image_urls"), values.pop("max_image_bytes")
        most = values.pop("max_images"), values.pop("max_audio_bytes")
        named["images"] = ImageLimits(*images, *most)
        return cls(
            {name: values.pop(name) for name in server},
            {name: values.pop(name) for name in app} | named,
            values.pop("engine_timeout"),
        )
