"""One attention backend for prompts and another for single tokens, over one cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from inferno.builtin.torch_attention import TorchAttend
from inferno.catalog import Catalog, Offer, Plugin, load_catalog
from inferno.cli.render import explained
from inferno.contracts import AttentionBackend, AttentionNeed, CacheTensor, Hint
from inferno.core.engine import Engine
from inferno.errors import OptionError, UnsupportedError
from inferno.nn.batch import Batch
from inferno.plan import Options, Plan, open_model, plan_from_json, plan_to_json
from inferno.plan.attention import Wanted
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams

HOOK = "inferno_attention_backends"


def torchs() -> AttentionBackend:
    [offer] = [o for o in load_catalog().of(HOOK) if o.item.name == "torch"]
    item: AttentionBackend = offer.item
    return item


def with_backends(*items: AttentionBackend) -> Catalog:
    """The installed plugins, and these backends of a distribution of each."""
    catalog = load_catalog()
    plugins = [Plugin(item.name, f"their-{item.name}", "1.0") for item in items]
    offers = [Offer(item, f"their-{item.name}") for item in items]
    return Catalog(
        (*catalog.plugins, *plugins), {**catalog.offers, HOOK: (*catalog.of(HOOK), *offers)}
    )


def watched(name: str, seen: list[tuple[str, tuple[int, ...]]], **changes: Any) -> AttentionBackend:
    """Torch's backend under another name, which notes the steps it computes."""

    def build(need: AttentionNeed) -> Any:
        attend = TorchAttend(need)

        def noted(q: Any, k: Any, v: Any, cache: Any, batch: Batch, sinks: Any = None) -> Any:
            starts = batch.query_starts
            seen.append((name, tuple(b - a for a, b in zip(starts, starts[1:], strict=False))))
            return attend(q, k, v, cache, batch, sinks)

        return noted

    return evolve(torchs(), name=name, build=build, **changes)


def asked(backend: str, **more: Any) -> Options:
    return Options(
        device="cpu",
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        attention_backend=backend,
        **more,
    )


def planned(backend: str, catalog: Catalog, **more: Any) -> Plan:
    with open_model("demo", asked(backend, **more), catalog) as opened:
        return opened.plan


def tokens(options: Options, catalog: Catalog) -> list[int]:
    """Greedy tokens of two requests, the second of which comes while the first has its tokens
    drawn."""
    with open_model("demo", options, catalog) as opened:
        engine = Engine.load(opened)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    engine.submit(Request(id="0", token_ids=(1, 2, 3), params=params))
    ids = []
    for _ in range(3):
        ids += [token.token_id for token in engine.step()]
    engine.submit(Request(id="1", token_ids=(4, 5, 6, 7), params=params))
    while engine.busy:
        ids += [token.token_id for token in engine.step()]
    return [token for token in ids if token is not None]


def test_each_computes_its_steps_over_the_cache_of_both() -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []
    catalog = with_backends(watched("alpha", seen), watched("beta", seen))
    ids = tokens(asked("prompts=alpha,tokens=beta"), catalog)
    assert ids == tokens(asked("torch"), catalog)
    steps = list(dict.fromkeys(seen))
    assert ("alpha", (3,)) in steps and ("beta", (1,)) in steps and ("beta", (1, 1)) in steps
    assert ("alpha", (1, 4)) in steps, "a step with a prompt, single tokens included"
    assert all((name == "beta") == all(n == 1 for n in counts) for name, counts in steps)


def test_the_begin_of_the_one_that_computes_is_called() -> None:
    seen: list[str] = []

    def begin(name: str) -> Callable[[AttentionNeed, Batch], None]:
        return lambda need, batch: seen.append(name)

    catalog = with_backends(
        evolve(torchs(), name="alpha", begin=begin("alpha")),
        evolve(torchs(), name="beta", begin=begin("beta")),
    )
    with open_model("demo", asked("prompts=alpha,tokens=beta"), catalog) as opened:
        engine = Engine.load(opened)
    seen.clear()
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    engine.submit(Request(id="0", token_ids=(1, 2, 3), params=params))
    while engine.busy:
        engine.step()
    assert seen == ["alpha", "beta", "beta", "beta"]


def test_explain_names_both_and_why_the_others_were_not_chosen() -> None:
    plan = planned("prompts=alpha,tokens=torch", with_backends(watched("alpha", [])))
    text = explained(plan)
    assert "alpha for prompts, torch for single tokens" in text
    assert "[their-alpha 1.0, inferno" in text
    [use] = plan.attention
    assert use.tokens is not None and plan_from_json(plan_to_json(plan)) == plan
    assert {"alpha", "torch"}.isdisjoint(each.name for each in plan.considered)


def test_the_other_one_is_chosen_to_suit_the_one_that_was_named() -> None:
    """Of two that suit it, the one of the higher priority."""
    catalog = with_backends(
        watched("best", [], priority=1000, layout="another"),
        watched("good", [], priority=900),
        watched("named", [], priority=-1000),
    )
    [use] = planned("tokens=named", catalog).attention
    assert use.name == "good" and use.tokens is not None and use.tokens.name == "named"
    [use] = planned("prompts=named", catalog).attention
    assert use.name == "named" and use.tokens is not None and use.tokens.name == "good"
    plan = planned("tokens=named", catalog)
    reasons = {each.name: each.reason for each in plan.considered}
    assert reasons["best"] == "it keeps keys and values in another, named in token-major"


def test_one_name_twice_is_one_backend() -> None:
    [use] = planned("prompts=torch,tokens=torch", load_catalog()).attention
    assert use.name == "torch" and use.tokens is None


def test_backends_of_different_layouts_are_refused_with_both_named() -> None:
    other = evolve(torchs(), name="other", layout="")
    with pytest.raises(UnsupportedError) as caught:
        planned("prompts=torch,tokens=other", with_backends(other))
    assert caught.value.remedy == (  # and nothing about backends that were not asked for
        "other (their-other): it keeps keys and values in a private layout, torch in token-major"
    )


def test_a_layouts_name_is_not_believed() -> None:
    """Backends of one layout whose tensors differ."""

    def cache(need: AttentionNeed, block_size: int) -> dict[str, CacheTensor]:
        return {"k": CacheTensor((block_size,), "float32")}

    other = evolve(torchs(), name="other", cache=cache)
    with pytest.raises(OptionError, match="torch and other cannot share a cache of 16 tokens"):
        planned("prompts=torch,tokens=other", with_backends(other))


def test_a_block_is_what_both_can_read() -> None:
    large = evolve(torchs(), name="large", block_size=48, block_multiple=48)
    small = evolve(torchs(), name="small", block_size=64, block_multiple=32)
    catalog = with_backends(large, small)
    assert planned("prompts=large,tokens=small", catalog).block_size == 96


def test_steps_are_captured_beside_prompts_of_another_distribution() -> None:
    """Only single tokens are captured."""
    catalog = with_backends(watched("alpha", []))
    plan = planned("prompts=alpha,tokens=torch", catalog)
    assert (plan.capture is None) == (planned("torch", catalog).capture is None)
    assert planned("prompts=torch,tokens=alpha", catalog).capture is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("auto", Wanted("auto")),
        ("triton", Wanted("triton")),
        ("prompts=flash,tokens=triton", Wanted("flash", "triton")),
        ("tokens=triton, prompts=flash", Wanted("flash", "triton")),
        ("tokens=triton", Wanted("auto", "triton")),
    ],
)
def test_what_a_user_may_write(text: str, wanted: Wanted) -> None:
    assert Wanted.of(text) == wanted


@pytest.mark.parametrize("text", ["prefill=a", "prompts=a,prompts=b", "prompts=", "prompts=a,b"])
def test_what_is_not_understood_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        Wanted.of(text)
    assert "prompts=NAME,tokens=NAME" in caught.value.remedy


def test_a_hint_may_say_what_to_do_instead() -> None:
    catalog = load_catalog()
    hint = Hint(kind="attention", name="old", distribution="", remedy="Old is retired: use torch.")
    offers = {**catalog.offers, "inferno_hints": (Offer(hint, "their-index"),)}
    with pytest.raises(OptionError) as caught:
        planned("old", Catalog(catalog.plugins, offers))
    assert caught.value.remedy.startswith("Old is retired: use torch. Installed: ")
