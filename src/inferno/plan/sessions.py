"""The choice of what keeps sessions."""

from __future__ import annotations

from inferno.catalog import Catalog
from inferno.catalog.choice import choose
from inferno.errors import OptionError
from inferno.plan.decided import Decided
from inferno.plan.options import Options
from inferno.plan.session_use import SessionUse

TTL = 3600.0
"""Seconds that a session is kept after its last use."""


def choose_sessions(
    catalog: Catalog, options: Options, policy: str, max_model_len: int
) -> Decided[SessionUse | None] | None:
    """Return what keeps sessions; None if nothing can. Raises OptionError if it was asked for."""
    required = options.session_ttl is not None or options.session_quota is not None
    offers = catalog.of("inferno_session_keepers")
    if policy == "none" or not offers:
        if required:
            cause = "there is no prefix cache" if policy == "none" else "no plugin keeps sessions"
            remedy = (
                "Leave out --cache-policy none."
                if policy == "none"
                else "Install one that does, or leave them out."
            )
            raise OptionError(f"--session-ttl and --session-quota: {cause}", remedy)
        return None
    choice = choose(offers, "sessions")
    use = SessionUse(
        name=choice.item.name,
        distribution=choice.offer.distribution,
        ttl=TTL if options.session_ttl is None else options.session_ttl,
        quota=options.session_quota or max_model_len,
    )
    return Decided(use, (("session keeper", choice.offer),), choice.refusals)
