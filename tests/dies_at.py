"""An instance that is killed when it is about to send a message of one kind:
`python -m tests.dies_at ROLE URL KIND [TOKEN_FILE]`. A decoding one asks for a prompt. With KIND
`nothing` it lives on, and says what it has.
"""

from __future__ import annotations

import os
import signal
import sys
from select import select
from typing import Any

from tests.stores.test_stored_caches import load

from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams


def main(role: str, url: str, kind: str, token_file: str | None = None) -> None:
    from inferno_disaggregated.messages import Session

    seal = Session.seal

    def dying(session: Session, message: Any) -> list[bytes]:
        if type(message).__name__ == kind:
            os.kill(os.getpid(), signal.SIGKILL)
        return seal(session, message)

    Session.seal = dying  # type: ignore[method-assign, assignment]  # what the test is for
    if role == "prefill":
        engine = load("demo", prefill_for=url, pd_token_file=token_file)
        print("listening", flush=True)
    else:
        engine = load("demo", decode_with=url, pd_min_tokens=20, pd_token_file=token_file)
        store: Any = engine._store
        while not store.index.client.joined:
            select([], [], [], 0.01)
        params = SamplingParams(temperature=0, max_tokens=4)
        engine.submit(Request(id="0", token_ids=tuple(range(100)), params=params))
    while True:
        if engine.busy:
            for output in engine.step():
                print(output.token_id, output.num_remote, flush=True)
        else:
            descriptor = engine.listens
            select([descriptor] if descriptor is not None else [], [], [], 0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
