"""Orders of eviction for the prefix cache: by cost, and by age."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import CachePolicy


@hookimpl
def inferno_cache_policies() -> list[CachePolicy]:
    ages = {"ttl-5m": "five_minutes", "ttl-1h": "an_hour", "ttl-24h": "a_day"}
    return [
        CachePolicy(name="cost", build="inferno_cache_policies.cost:CostCache", priority=-10),
        *(
            CachePolicy(name=name, build=f"inferno_cache_policies.ttl:{build}", priority=-10)
            for name, build in ages.items()
        ),
    ]
