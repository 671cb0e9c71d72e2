"""Machines of a Ray cluster: an actor on each starts `inferno rank --join`, and reports its end."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from attrs import define, field, frozen

from inferno.contracts import Device, MachineStart

ROOM_SECONDS = 120
"""How long to wait for the cluster to have room: it may be starting machines."""
_HERE = 0.001
"""Of the resource by which Ray names a machine: enough to be there."""


def refuses(ranks: int, device: Device) -> str | None:
    """Return why Ray cannot start ranks here."""
    return None if find_spec("ray") else "Ray is not installed: pip install ray"


@define(eq=False)
class Room:
    """The placement group of some actors. It is given back with the last of them."""

    group: Any
    actors: set[Any] = field(factory=set)

    def leave(self, actor: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        self.actors.discard(actor)
        if not self.actors:
            remove_placement_group(self.group)


@frozen(eq=False)
class ActorProcess:
    """The process that an actor has started (`contracts.RankProcess`)."""

    actor: Any
    ending: Any
    """Ray's reference to how it ends."""
    room: Room

    def wait(self) -> str:
        import ray

        try:
            return str(ray.get(self.ending))
        except Exception as error:  # Ray's errors of actors, and those of a cluster that is gone
            return f"was lost by Ray: {str(error).splitlines()[0]}"

    def is_stopped(self) -> bool:
        return False  # its machine sees that

    def kill(self) -> None:
        import ray

        if ray.is_initialized():
            ray.kill(self.actor)
            self.room.leave(self.actor)


def start(what: MachineStart) -> Sequence[ActorProcess]:
    """Start an actor for each machine (`contracts.Executor.machines`). Raises OSError."""
    try:
        return _start(what)
    except OSError:
        raise
    except Exception as error:  # whatever keeps Ray from starting
        raise OSError(f"Ray: {type(error).__name__}: {error}") from error


def _start(what: MachineStart) -> Sequence[ActorProcess]:
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if not ray.is_initialized():
        ray.init(log_to_driver=False, configure_logging=False)
    cpus = what.ranks * what.threads
    spread = sum(node["Alive"] for node in ray.nodes()) > what.machines
    # The first bundle is where the engine is, so that the others are elsewhere.
    bundles = [{f"node:{ray.util.get_node_ip_address()}": _HERE}] if spread else []
    first = len(bundles)
    each: dict[str, float] = {"CPU": cpus, **({"GPU": what.gpus} if what.gpus else {})}
    bundles += [each] * what.machines
    group = placement_group(bundles, strategy="STRICT_SPREAD" if spread else "SPREAD")
    room = Room(group)
    if not group.wait(ROOM_SECONDS):
        room.leave(None)
        asked = f"{cpus} CPUs" + (f" and {what.gpus} GPUs" if what.gpus else "")
        raise OSError(f"the Ray cluster has no room for {what.machines} times {asked}")
    machine = ray.remote(Machine)
    processes = []
    for index in range(what.machines):
        place = PlacementGroupSchedulingStrategy(group, first + index)
        # Ray shows an actor the GPUs that it gives it, and no others.
        actor = machine.options(
            num_cpus=cpus, num_gpus=what.gpus, scheduling_strategy=place
        ).remote()
        room.actors.add(actor)
        ending = actor.run.remote(list(what.command), what.token)
        processes.append(ActorProcess(actor, ending, room))
    return processes


class Machine:
    """The actor of one machine. Its process ends with it."""

    def run(self, command: list[str], token: str) -> str:
        """Run a command of this Python's, and return how it has ended."""
        import os
        import signal
        import subprocess
        import sys

        environ = os.environ | {"INFERNO_RANK_TOKEN": token}
        environ.pop("OMP_NUM_THREADS", None)  # Ray's: ranks know how many threads they have
        here = [sys.executable, *command[1:]]  # Python's path may be another one on this machine
        child = subprocess.Popen(here, env=environ, preexec_fn=_end_with_parent)
        code = child.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with code {code}"


def _end_with_parent() -> None:
    """Let the system end this process with its parent, where it can."""
    import ctypes
    import signal
    import sys

    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
