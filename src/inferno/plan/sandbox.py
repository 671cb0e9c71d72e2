"""The choice of a sandbox for the engine's processes, and of what it leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from inferno.catalog import Catalog
from inferno.catalog.choice import choose
from inferno.contracts import COLLECTIVES, Checkpoint, Executor, Sandbox
from inferno.errors import OptionError, UnsupportedError
from inferno.plan.decided import Decided
from inferno.plan.kernel_use import KernelUse
from inferno.plan.options import Options
from inferno.plan.sandbox_use import SandboxUse

BESIDE = (".json", ".jinja", ".model")
"""Endings of what is read beside a model that is named by its file: its config, its tokenizer."""


def choose_sandbox(
    catalog: Catalog,
    options: Options,
    device: str,
    kernels: Sequence[KernelUse],
    executor: Executor | None,
    *,
    reads: Iterable[str],
    writes: Iterable[str | None],
) -> Decided[SandboxUse] | None:
    """Return the sandbox if the options ask for one. `reads` and `writes` are what the plan needs;
    what is None is passed over. Raises OptionError, UnsupportedError."""
    if not options.sandbox:
        return None
    if executor is not None and not executor.inherits:
        raise UnsupportedError(
            f"--sandbox: the executor {executor.name} starts ranks out of its reach",
            "Leave --tp out, or --disable that executor.",
        )
    # Pipeline stages use sockets with a file (`process.ranks.socket_link`), for sums, too.
    if executor is not None and options.pp == 1 and all(use.op != COLLECTIVES for use in kernels):
        hint = catalog.hint("kernels", "cpu")
        raise UnsupportedError(
            "--sandbox: without kernels that exchange tensors, ranks need the network",
            f"Leave --tp out. {hint}".rstrip(),
        )
    offers = catalog.of("inferno_sandboxes")
    if not offers:
        hint = catalog.hint("sandbox", "landlock")
        remedy = hint or "Install a plugin that confines processes."
        raise UnsupportedError("--sandbox: no sandbox is installed", remedy)
    choice = choose(offers, "--sandbox", lambda offer: offer.item.refuses(device))
    sandbox: Sandbox = choice.item
    use = SandboxUse(
        name=sandbox.name,
        distribution=choice.offer.distribution,
        holds=tuple(sandbox.holds()),
        lacks=tuple(sandbox.lacks()),
        reads=tuple(dict.fromkeys([*reads, *_asked(options.sandbox_read)])),
        writes=tuple(path for path in writes if path is not None),
    )
    return Decided(use, (("sandbox", choice.offer),), choice.refusals)


def check_reachable(options: Options) -> None:
    """Raise UnsupportedError for what a confined engine would reach others by."""
    if not options.sandbox:
        return
    flags = {
        "--prefill-for": options.prefill_for,
        "--decode-with": options.decode_with,
        "--kv-events": options.kv_events,
    }
    if names := [name for name, given in flags.items() if given]:
        raise UnsupportedError(
            f"--sandbox: the engine has no network, which {' and '.join(names)} would need",
            f"Leave out {' and '.join(names)}, or --sandbox.",
        )


def _asked(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        path = Path(folder).expanduser().absolute()
        if not path.exists():
            raise OptionError(f"--sandbox-read {folder}: there is no such file", "Make it first.")
        yield str(path)


def files_of(path: str | Path, checkpoint: Checkpoint | None = None) -> Iterator[str]:
    """Yield what is read of a model: its folder, or its file with the other parts of it."""
    path = Path(path)
    yield str(path)
    if path.is_dir():
        # A hub's folder: snapshots/REVISION has links to blobs/. Links of others that lead out of
        # their folder are the model's, not the user's, and are not followed.
        if path.parent.name == "snapshots":
            yield str(path.parent.parent)
        return
    yield from map(str, getattr(checkpoint, "files", ()))
    for ending in BESIDE:
        yield from map(str, sorted(path.parent.glob(f"*{ending}")))
