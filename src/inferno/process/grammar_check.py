"""Checks grammars before their requests are admitted, in a process of its own (`BoundedProcess`):
a hostile grammar may take minutes or gigabytes to compile."""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from pathlib import Path
from typing import NoReturn

import msgspec
from attrs import evolve, frozen

from inferno.contracts import GrammarSpec
from inferno.errors import GrammarError, InfernoError
from inferno.plan import Plan, plan_from_json
from inferno.process.bounded import BoundedProcess, begin, serve

SECONDS = 2.0
"""Processor time for one grammar. Most take milliseconds."""
MEMORY = 4 * 2**30
"""Bytes that the process may allocate."""
_REMEMBERED = 1024
"""Verdicts that are kept: clients send the same schema again and again."""


@frozen
class Verdict:
    """Whether a grammar compiles, and if not, why."""

    cause: str = ""
    remedy: str = ""
    path: str = ""

    def raise_error(self) -> None:
        """Raise GrammarError unless it compiles."""
        if self.cause:
            raise GrammarError(self.cause, self.remedy, path=self.path)


_encode = msgspec.msgpack.Encoder().encode
_decode_spec = msgspec.msgpack.Decoder(GrammarSpec).decode
_decode_verdict = msgspec.msgpack.Decoder(Verdict).decode


class GrammarChecker(BoundedProcess):
    """Checks grammars for a plan, one at a time."""

    module, does, noun = "inferno.process.grammar_check", "checks grammars", "grammars"

    def __init__(self, plan: Plan, *, seconds: float = SECONDS) -> None:
        super().__init__(plan, seconds=seconds)
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()

    async def check(self, spec: GrammarSpec) -> None:
        """Raise GrammarError if the grammar does not compile, takes too much to compile, or
        gives up within its first tokens, and CheckerBusyError if that cannot be told now."""
        body = _encode(evolve(spec, param=""))
        key = hashlib.sha256(body).digest()
        if key not in self._known:
            async with self._turn():
                if key not in self._known:
                    self._known[key] = _decode_verdict(await self._ask(body))
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known[key].raise_error()

    def exceeded(self, limit: str, cause: BaseException) -> NoReturn:
        how = f"more than {self._seconds:g} s" if limit == "time" else "too much memory"
        raise GrammarError(f"the grammar takes {how} to compile", "Simplify it.") from cause


def main() -> None:
    """Answer each grammar with a verdict."""
    from inferno.process.confined import confine

    begin()
    plan = plan_from_json(Path(sys.argv[1]).read_bytes())
    confine(plan)  # before anything of the model is read, and before numpy has threads
    from inferno.constraints import Grammars
    from inferno.plan import reopen

    with reopen(plan) as opened:
        grammars = Grammars.of(opened)
        grammars.prepare()

    def answer(body: bytes) -> bytes:
        try:
            grammars.check(_decode_spec(body))
        except GrammarError as error:
            return _encode(Verdict(error.cause, error.remedy, error.path))
        except InfernoError as error:
            return _encode(Verdict(error.cause, error.remedy))
        return _encode(Verdict())

    serve(answer, _encode(Verdict()), float(sys.argv[2]), MEMORY)


if __name__ == "__main__":
    main()
