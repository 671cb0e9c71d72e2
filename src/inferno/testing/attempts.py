"""What hostile code in a model's process would try. Run as a file, because the package of the kit
imports torch: `python attempts.py JSON`. Prints each attempt's error, empty if it succeeds."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Targets = Mapping[str, Any]
"""sandbox (a name, or null), reads and writes (folders), secret (a file elsewhere), port (of a TCP
socket that listens), victim (the id of another process)."""
_PTRACE_SEIZE = 0x4206


def tcp(at: Targets) -> None:
    socket.create_connection(("127.0.0.1", at["port"]), timeout=5).close()


def udp(at: Targets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", at["port"]))


def ipv6(at: Targets) -> None:
    socket.socket(socket.AF_INET6).close()


def read_elsewhere(at: Targets) -> None:
    Path(at["secret"]).read_text()


def list_elsewhere(at: Targets) -> None:
    os.listdir(Path(at["secret"]).parent)


def write_elsewhere(at: Targets) -> None:
    Path(at["secret"]).with_name("new").write_text("x")


def append_elsewhere(at: Targets) -> None:
    with open(at["secret"], "a"):
        pass


def change_mode_elsewhere(at: Targets) -> None:
    os.chmod(at["secret"], 0o666)


def move_there(at: Targets) -> None:
    mine = Path(at["writes"], "mine")
    mine.write_text("x")
    mine.rename(Path(at["secret"]).with_name("moved"))


def link_here(at: Targets) -> None:
    """Give the secret a name in a folder that is open."""
    link = Path(at["writes"], "link")
    os.link(at["secret"], link)
    link.read_text()


def through_a_thread(at: Targets) -> None:
    errors: list[OSError] = []

    def attempt() -> None:
        try:
            read_elsewhere(at)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def through_a_program(at: Targets) -> None:
    code = f"open({at['secret']!r})"
    done = subprocess.run([sys.executable, "-SEc", code], stderr=subprocess.PIPE, check=False)
    if done.returncode:
        assert b"PermissionError" in done.stderr, done.stderr
        raise PermissionError(errno.EACCES, "of the program")


def environment_of_another(at: Targets) -> None:
    Path(f"/proc/{at['victim']}/environ").read_bytes()


def command_of_another(at: Targets) -> None:
    Path(f"/proc/{at['victim']}/cmdline").read_bytes()


def trace_another(at: Targets) -> None:
    _called("ptrace", _PTRACE_SEIZE, at["victim"], None, None)


def read_anothers_memory(at: Targets) -> None:
    buffer = ctypes.create_string_buffer(8)
    address = int(Path(f"/proc/{at['victim']}/stat").read_text().split()[27])  # of its stack
    both = (ctypes.c_void_p(ctypes.addressof(buffer)), ctypes.c_size_t(8))
    local = (ctypes.c_void_p * 2)(both[0].value, both[1].value)
    remote = (ctypes.c_void_p * 2)(address, 8)
    _called("process_vm_readv", at["victim"], local, 1, remote, 1, 0)


def _called(name: str, *arguments: object) -> None:
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*values) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


ATTEMPTS: tuple[Callable[[Targets], None], ...] = (
    tcp,
    udp,
    ipv6,
    read_elsewhere,
    list_elsewhere,
    write_elsewhere,
    append_elsewhere,
    change_mode_elsewhere,
    move_there,
    link_here,
    through_a_thread,
    through_a_program,
    environment_of_another,
    command_of_another,
    trace_another,
    read_anothers_memory,
)
"""What a confined process must be refused."""


def read_here(at: Targets) -> None:
    [file, *_] = Path(at["reads"]).iterdir()
    file.read_text()


def write_here(at: Targets) -> None:
    folder = Path(at["writes"], "folder")
    folder.mkdir()
    (folder / "one").write_text("x")
    (folder / "one").rename(folder / "two")
    (folder / "two").unlink()
    folder.rmdir()


def talk_to_a_child(at: Targets) -> None:
    one, other = socket.socketpair()
    subprocess.run(
        [sys.executable, "-c", "import ssl, json"], pass_fds=[other.fileno()], check=True
    )
    one.close()
    other.close()


def listen_here(at: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
        path = str(Path(at["writes"], "s"))
        listener.bind(path)
        listener.listen()
        caller.connect(path)
    os.unlink(path)


def import_a_package(at: Targets) -> None:
    import torch

    torch.ones(64, 64) @ torch.ones(64, 64)


WORK: tuple[Callable[[Targets], None], ...] = (
    read_here,
    write_here,
    talk_to_a_child,
    listen_here,
    import_a_package,
)
"""What an engine does."""


def results(at: Targets) -> dict[str, str]:
    """Try everything. Returns the name of each attempt with its error; empty if there is none."""
    errors = {}
    for attempt in (*ATTEMPTS, *WORK):
        try:
            attempt(at)
            errors[attempt.__name__] = ""
        except OSError as error:
            errors[attempt.__name__] = errno.errorcode.get(error.errno or 0, repr(error))
        except Exception as error:
            errors[attempt.__name__] = repr(error)
    return errors


def main() -> None:
    from inferno.catalog import load_catalog
    from inferno.contracts import Confinement, Sandbox

    at = json.loads(sys.argv[1])
    if at["sandbox"] is not None:
        sandbox = load_catalog().named(Sandbox, at["sandbox"]).item
        sandbox.confine(Confinement(reads=[at["reads"]], writes=[at["writes"]]))
    print(json.dumps(results(at)))


if __name__ == "__main__":
    main()
