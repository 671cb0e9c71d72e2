"""A follower's end of a link: it pulls its share of what rank 0 asks for, or sends its share of
what rank 0 computes. It may have tiers beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from attrs import define, field

from inferno.contracts import LinkedPrompt, LinkIndex
from inferno.core.types import Step
from inferno.process.ranks.keeping_blocks import KeptBlocks
from inferno.process.ranks.messages import Fetched, StoreCall
from inferno.stores.stacked import StoreHalves


@define(eq=False)
class KeptLink(KeptBlocks):
    """The end of a rank that is linked to the other instance's rank of its number."""

    _refused: list[StoreCall] = field(factory=list, init=False)
    """Asks that came to nothing at once."""

    @classmethod
    def of(cls, built: StoreHalves) -> KeptBlocks:
        """Return a follower's store, which may link instances."""
        return (cls if isinstance(built[0], LinkIndex) else KeptBlocks)(*built)

    @property
    def link(self) -> LinkIndex:
        return cast(LinkIndex, self.index)

    def take(self, call: StoreCall) -> None:
        match call.action:
            case "ask":
                prompt = LinkedPrompt(
                    id=call.owner, token_ids=(), name=call.name, instance=call.instance
                )
                if self.link.ask(prompt, call.keys, call.groups):
                    self._fetches.setdefault(call.owner, []).append(call)
                else:
                    self._refused.append(call)
            case "begin":
                self.link.begin(call.owner, call.keys)
            case "end":
                self.link.end(call.owner, call.error)
            case _:
                super().take(call)

    def answers(self) -> Iterator[Fetched]:
        refused, self._refused = self._refused, []
        for call in refused:
            yield self._answer(call)
        yield from super().answers()

    def _answer(self, call: StoreCall) -> Fetched:
        if call.action == "ask":
            # What has come for another prompt goes with that, unless this one holds it.
            pairs = zip(call.keys, call.groups, strict=True)
            held = [(key, here) for key, groups in pairs if (here := groups & self.index.near(key))]
            if held:
                self.index.fetch(held, call.owner)
        return super()._answer(call)

    def asked(self) -> tuple[list[str], list[str]]:
        if not self.link.is_asked:
            return [], []
        prompts, unwanted = self.link.take_asked()
        return [prompt.id for prompt in prompts], [*unwanted]

    @property
    def waits_for(self) -> int | None:
        return self.mover.fileno()


@define(eq=False)
class KeptBoth(KeptBlocks):
    """Tiers and an end of a link. Rank 0 says for which of them a call is; steps save to both and
    load from both, as one store (`stores.stacked`)."""

    tiers: KeptBlocks
    link: KeptBlocks

    @classmethod
    def of(cls, one: StoreHalves, tiers: StoreHalves, link: StoreHalves) -> KeptBoth:
        """Return a follower's store of tiers and a link. `one` is both, for steps."""
        return cls(*one, KeptBlocks(*tiers), KeptLink.of(link))

    def take(self, call: StoreCall) -> None:
        (self.link if call.linked else self.tiers).take(call)

    def note(self, step: Step) -> None:
        super().note(step)
        for placed in step.loads:  # what one of the two loads, the other may save
            self.index.note(placed)

    def answers(self) -> Iterator[Fetched]:
        yield from self.tiers.answers()
        yield from self.link.answers()

    def asked(self) -> tuple[list[str], list[str]]:
        return self.link.asked()

    @property
    def waits_for(self) -> int | None:
        return self.mover.fileno() if self.tiers.waits_for is not None else self.link.waits_for
