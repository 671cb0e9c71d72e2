"""Reads of another process' memory through nixl, where it is installed: RDMA, or what there is."""

from __future__ import annotations

import importlib
import logging
import secrets
from typing import Any

import numpy as np
from attrs import define, field

from inferno_disaggregated.address import nixl_package
from inferno_disaggregated.pieces import Bytes

log = logging.getLogger("inferno.link")


@define(eq=False)
class Pull:
    """A read in progress."""

    into: Bytes
    _handle: Any
    _registered: Any


@define(eq=False)
class Agent:
    """One end's agent. It offers memory, or reads what another one offers."""

    _agent: Any
    _offered: Any = None
    _other: str = ""
    _address: int = 0
    _pulls: list[Pull] = field(factory=list)

    @classmethod
    def open(cls) -> Agent | None:
        """Start an agent. Returns None if that fails."""
        try:
            api = importlib.import_module(f"{nixl_package()}._api")
            config = api.nixl_agent_config(backends=["UCX"])
            return cls(api.nixl_agent(f"inferno-{secrets.token_hex(8)}", config))
        except Exception as error:  # nixl has errors of its own
            log.error("nixl does not start: %s", error)
            return None

    @classmethod
    def offering(cls, address: int, nbytes: int) -> Agent | None:
        """Start an agent that lets others read this memory of the process. Returns None if that
        fails."""
        if (agent := cls.open()) is None:
            return None
        try:
            agent._offered = agent._agent.register_memory([(address, nbytes, 0, "")], "DRAM")
        except Exception as error:
            log.error("nixl does not take memory: %s", error)
            return None
        return agent

    def metadata(self) -> bytes:
        """Return what another agent needs to know to read what is offered."""
        return bytes(self._agent.get_agent_metadata())

    def meet(self, metadata: bytes, address: int) -> bool:
        """Get to know an agent that offers memory at an address. Returns False if that fails."""
        try:
            other = self._agent.add_remote_agent(metadata)
        except Exception:
            return False
        self._other = other.decode() if isinstance(other, bytes) else str(other)
        self._address = address
        return True

    def read(self, offset: int, nbytes: int) -> Pull | None:
        """Begin to read. Returns None if that fails."""
        into = np.empty(nbytes, np.uint8)
        here = int(into.ctypes.data)
        try:
            registered = self._agent.register_memory([(here, nbytes, 0, "")], "DRAM")
            handle = self._agent.initialize_xfer(
                "READ",
                self._agent.get_xfer_descs([(here, nbytes, 0)], "DRAM"),
                self._agent.get_xfer_descs([(self._address + offset, nbytes, 0)], "DRAM"),
                self._other,
            )
            if self._agent.transfer(handle) == "ERR":
                return None
        except Exception:
            return None
        pull = Pull(into, handle, registered)
        self._pulls.append(pull)
        return pull

    def ended(self, pull: Pull) -> bool | None:
        """Whether a read has succeeded; None while it goes on."""
        try:
            state = self._agent.check_xfer_state(pull._handle)
        except Exception:
            state = "ERR"
        if state == "PROC":
            return None
        self._drop(pull)
        return bool(state == "DONE")

    def _drop(self, pull: Pull) -> None:
        self._pulls.remove(pull)
        self._agent.release_xfer_handle(pull._handle)
        self._agent.deregister_memory(pull._registered)

    def close(self) -> None:
        """End all reads."""
        for pull in list(self._pulls):
            self._drop(pull)
        if self._other:
            self._agent.remove_remote_agent(self._other)
            self._other = ""
        if self._offered is not None:
            self._agent.deregister_memory(self._offered)
            self._offered = None
