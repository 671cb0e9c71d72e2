"""`inferno explain`: the plan that the other commands execute, and the reasons for it. Loads
nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import rich_click as click

from inferno.cli.options import chosen, declare, engine_options, plan_options, ref_argument

if TYPE_CHECKING:
    from inferno.plan import Opened, Plan
    from inferno.stores.layouts import Survey


@declare
@ref_argument
@click.option("--json", "as_json", is_flag=True, help="Print the whole plan as JSON.")
@click.option(
    "--lock", "locked", is_flag=True, help="Write the plan to ./inferno.lock, for serve --locked."
)
@click.option(
    "--check",
    "checked",
    is_flag=True,
    help="Compare every tensor's name and shape with the model (imports torch).",
)
@engine_options
def command(ref: str | None, as_json: bool, locked: bool, checked: bool, **values: Any) -> None:
    """Show which plugins would run REF, in how much memory, and why. --memory may be that of
    another machine."""
    from inferno.cli import lock, render
    from inferno.plan import Machine, open_model

    machine = Machine(elsewhere=not locked)
    with open_model(chosen(ref), plan_options(values), machine=machine) as opened:
        plan = opened.plan
        report = _survey(opened)
        if as_json:
            click.echo(_as_json(plan, report))
        else:
            click.echo(render.explained(plan, opened.text(), report))
        if checked:
            from inferno.weights.loading import check

            count = check(opened)
            click.echo(
                f"Checked: all {count} tensors have the names and shapes the model needs.", err=True
            )
    if locked:
        click.echo(f"Plan written to {lock.write(plan)}.", err=True)


def _survey(opened: Opened) -> Survey | None:
    if opened.plan.store is None:
        return None
    from inferno.stores.layouts import survey

    return survey(opened)


def _as_json(plan: Plan, found: Survey | None) -> str:
    """The plan, with what follows from it for each machine, and what `tiers` adds of the folder as
    it is now, which is no decision."""
    from inferno.cli import machine_rows, tiers
    from inferno.plan import plan_to_json

    text = plan_to_json(plan)
    added = machine_rows.document(plan) | tiers.document(plan, found)
    return json.dumps(json.loads(text) | added, indent=2) if added else text
