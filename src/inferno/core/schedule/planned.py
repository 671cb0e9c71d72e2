"""The scheduler of a plan."""

from __future__ import annotations

from attrs import evolve

from inferno.builtin.first_come import FirstCome
from inferno.contracts import QueueBuild
from inferno.core.kvcache import CacheGroups
from inferno.core.schedule.scheduler import Scheduler
from inferno.plan import Plan
from inferno.plan.draft_cost import DraftCost
from inferno.stores import NO_STORE, NoStore


def scheduler_of(
    plan: Plan,
    groups: CacheGroups,
    verify: float | None = None,
    store: NoStore = NO_STORE,
    streams: bool = False,
    queue: QueueBuild = FirstCome,
) -> Scheduler:
    """`verify`: the measured cost of a draft, or None. `streams`: bound steps in time."""
    drafts = None
    if (speculation := plan.speculation) is not None:
        drafts = DraftCost(most=speculation.num_drafts, propose=speculation.propose_cost)
        drafts = drafts if verify is None else evolve(drafts, verify=verify)
    scheduler = Scheduler(
        groups,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        max_step_time=plan.max_step_time if streams else 0.0,
        drafts=drafts,
        store=store,
        queue=queue,
        adapter_slots=0 if plan.adapters is None else plan.adapters.slots,
    )
    scheduler.budget.sees(plan.media)
    return scheduler
