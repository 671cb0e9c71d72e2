"""An engine process in a sandbox: what hostile code in it tries, and what it serves."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from safetensors.torch import load_file
from tests.peft_adapters import matrices, pairs, write_peft

from inferno import LLM, AsyncLLM, SamplingParams
from inferno.catalog import load_catalog
from inferno.contracts import Sandbox
from inferno.errors import OptionError, RequestError, UnsupportedError
from inferno.plan import Options, resolve
from inferno.process.confined import confine
from inferno.process.environment import environment
from inferno.process.launch import EngineProcess, launch
from inferno.testing import alike, attempts
from inferno.testing.sandbox import PREVENTED, targets
from inferno.testing.tiny import installed, without_kernels

if (refusal := load_catalog().named(Sandbox, "landlock").item.refuses("cpu")) is not None:
    pytest.skip(refusal, allow_module_level=True)

TOY: dict[str, Any] = {"device": "cpu", "max_model_len": 128, "max_num_seqs": 4, "offline": True}
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
PROMPT = [5 + 7 * i % 90 for i in range(40)]

HOSTILE = f"""
import ctypes, importlib.util, json, os
from inferno import hookimpl
from inferno.contracts import LogitsProcessor

@hookimpl
def inferno_logits_processors():
    return [LogitsProcessor(name="hostile", build=build)]

def build(args, context):
    spec = importlib.util.spec_from_file_location("attempts", {attempts.__file__!r})
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.results(args)
    libc = ctypes.CDLL(None, use_errno=True)
    ring = libc.syscall(ctypes.c_long(425), 1, ctypes.create_string_buffer(256))
    found["io_uring"] = "" if ring >= 0 else module.errno.errorcode[ctypes.get_errno()]
    found["HF_TOKEN"] = os.environ.get("HF_TOKEN", "")
    found["DATABASE_URL"] = os.environ.get("DATABASE_URL", "")
    with open(os.path.join(args["writes"], "found.json"), "w") as file:
        json.dump(found, file)
    return Silent()

class Silent:
    def process(self, token_ids, logits):
        return logits
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A plugin that is hostile once a request asks for it: as the code of a model would be that has
    found a way into the engine."""
    site = tmp_path / "site"
    info = site / "inferno_hostile-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: inferno-hostile\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[inferno]\nhostile = inferno_hostile_plugin\n")
    (site / "inferno_hostile_plugin.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("DATABASE_URL", "postgres://user:secret@host")
    yield


@pytest.mark.slow
@alike
@pytest.mark.parametrize("sandbox", [True, False])
def test_hostile_code_in_the_engine_reaches_nothing(
    hostile: None, tmp_path: Path, sandbox: bool
) -> None:
    async def run(at: dict[str, Any]) -> None:
        boxed: dict[str, Any] = {"sandbox": True, "sandbox_read": (at["reads"],)}
        boxed = boxed if sandbox else {}
        async with AsyncLLM("demo", **TOY, **boxed, kv_store=at["writes"]) as llm:
            call = {"name": "hostile", "args": {**at, "sandbox": None}}
            params = evolve(GREEDY, logits_processors=[call])
            await llm.generate(PROMPT, params)

    with targets(tmp_path, None) as at:
        if sandbox:
            at["victim"] = os.getpid()  # the server itself
        asyncio.run(run(at))
        results = json.loads(Path(at["writes"], "found.json").read_text())
    tried = [attempt.__name__ for attempt in attempts.ATTEMPTS] + ["io_uring"]
    if sandbox:
        assert {name: results[name] for name in tried if results[name] not in PREVENTED} == {}
        assert (results["HF_TOKEN"], results["DATABASE_URL"]) == ("", "")
    else:
        works = {name for name in tried if results[name] == ""}
        assert works >= {
            "tcp",
            "udp",
            "read_elsewhere",
            "write_elsewhere",
            "command_of_another",
        }
        # An engine never needs the hub's token; what plugins may need is left to them.
        assert (results["HF_TOKEN"], results["DATABASE_URL"]) == ("", os.environ["DATABASE_URL"])
    assert {work.__name__: results[work.__name__] for work in attempts.WORK} == dict.fromkeys(
        (work.__name__ for work in attempts.WORK), ""
    )


@pytest.mark.slow
def test_a_confined_engine_serves_in_full(tmp_path: Path) -> None:
    """Structured output, adapters that come later, other weights, sleep, a store on disk, packed
    weights, and another process after a crash: with the answers of a free one."""
    model = Path(resolve("demo", Options(device="cpu")).path)
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    adapters = [
        write_peft(folder, pairs(matrices(model), seed, 4))
        for seed, folder in enumerate((inside / "first", inside / "later", outside / "other"))
    ]
    tensors = load_file(model / "model.safetensors")
    changed = [(name, -tensor) for name, tensor in tensors.items() if "o_proj" in name]
    options: dict[str, Any] = {**TOY, "loras": {"first": str(adapters[0])}, "max_loras": 2}

    async def run(**more: Any) -> list[Any]:
        results: list[Any] = []
        async with AsyncLLM("demo", **options, **more) as llm:

            async def answer(**given: Any) -> None:
                output = await llm.generate(PROMPT, GREEDY, **given)
                results.append(output.outputs[0].token_ids)

            await answer()
            await answer(lora="first")
            await llm.load_lora("later", str(adapters[1]))
            await answer(lora="later")
            choice = evolve(GREEDY, structured_outputs={"choice": ["red", "green"]})
            results.append((await llm.generate("A colour:", choice)).outputs[0].text)
            with pytest.raises(RequestError):
                bad = evolve(GREEDY, structured_outputs={"regex": "("})
                await llm.generate("A colour:", bad)
            await llm.sleep()
            await llm.wake_up()
            await answer()
            await llm.update_weights(changed)
            await answer()
            await llm.update_weights(str(model))
            await answer()
            if llm.plan.sandbox is not None:
                with pytest.raises(OptionError, match="--sandbox-read"):
                    await llm.load_lora("other", str(adapters[2]))
                with pytest.raises(OptionError, match="--sandbox-read"):
                    await llm.update_weights(str(outside))
            pid, scratch = llm._client.pid, llm._client.scratch  # type: ignore[attr-defined]
            os.kill(pid, signal.SIGKILL)
            while llm._client.pid == pid or not llm.alive:  # type: ignore[attr-defined]
                await asyncio.sleep(0.05)
            await answer()
            assert scratch is None or not Path(scratch).exists()
        return results

    boxed = {"sandbox": True, "sandbox_read": (str(inside),), "kv_store": str(tmp_path / "kv")}
    confined = asyncio.run(run(**boxed, packed_cache=str(tmp_path / "packed")))
    assert confined == asyncio.run(run(kv_store=str(tmp_path / "kv2")))
    assert confined[3] in ("red", "green") and confined[5] != confined[0] == confined[6]
    assert any((tmp_path / "kv").rglob("*"))


@pytest.mark.parametrize(
    "shared", [{"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2}], ids=["tp", "pp", "tp and pp"]
)
@pytest.mark.slow
def test_ranks_are_confined_too(shared: dict[str, Any]) -> None:
    async def run(**more: Any) -> Any:
        async with AsyncLLM("demo", **TOY, **shared, threads=1, **more) as llm:
            if more:
                children = _children(llm._client.pid)  # type: ignore[attr-defined]
                assert len(children) == shared.get("tp", 1) * shared.get("pp", 1) - 1
                assert "Seccomp:\t2" in Path(f"/proc/{children[0]}/status").read_text()
            return (await llm.generate(PROMPT, GREEDY)).outputs[0].token_ids

    assert asyncio.run(run(sandbox=True)) == asyncio.run(run())


def _children(pid: int | None) -> list[int]:
    rows = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for some in rows for child in some]


def test_a_process_that_was_launched_before_its_plan_is_not_confined_and_is_ended() -> None:
    early, plan = EngineProcess(), resolve("demo", Options(sandbox=True, **TOY))
    process = launch(plan, early.beat, early)
    try:
        assert process is not early and process.scratch is not None
        assert early._child.wait(60) is not None
    finally:
        process.discard()
        process._child.wait(60)


@pytest.mark.parametrize(
    ("options", "said", "remedy"),
    [
        ({"prefill_for": "shm://a"}, "--prefill-for", "--sandbox"),
        ({"decode_with": "tcp://h:1"}, "--decode-with", "--sandbox"),
        ({"kv_events": "tcp://*:5557"}, "--kv-events", "--sandbox"),
    ],
)
def test_what_reaches_others_is_refused(options: dict[str, Any], said: str, remedy: str) -> None:
    with pytest.raises(UnsupportedError, match=said) as caught:
        resolve("demo", Options(sandbox=True, **TOY, **options))
    assert remedy in caught.value.remedy


def test_without_a_sandbox_that_works_here_it_is_refused(tmp_path: Path) -> None:
    catalog, options = installed(), Options(sandbox=True, **TOY)
    none = evolve(catalog, offers={**catalog.offers, "inferno_sandboxes": ()})
    with pytest.raises(UnsupportedError, match="no sandbox is installed") as caught:
        resolve("demo", options, none)
    assert "pip install inferno-landlock" in caught.value.remedy
    [offer] = catalog.of("inferno_sandboxes")
    unable = evolve(offer, item=evolve(offer.item, refuses=lambda device: "it is a Mac"))
    other = evolve(catalog, offers={**catalog.offers, "inferno_sandboxes": (unable,)})
    with pytest.raises(UnsupportedError, match="--sandbox") as caught:
        resolve("demo", options, other)
    assert "it is a Mac" in caught.value.remedy
    with pytest.raises(UnsupportedError, match="ranks need the network"):
        resolve("demo", evolve(options, tp=2), without_kernels(catalog))
    started = next(o for o in catalog.of("inferno_executors") if o.item.name == "processes")
    far = evolve(started, item=evolve(started.item, inherits=False))
    with pytest.raises(UnsupportedError, match="out of its reach"):
        elsewhere = evolve(catalog, offers={**catalog.offers, "inferno_executors": (far,)})
        resolve("demo", evolve(options, tp=2), elsewhere)
    with pytest.raises(OptionError, match="no such file"):
        resolve("demo", evolve(options, sandbox_read=(str(tmp_path / "none"),)))
    with pytest.raises(OptionError, match="without sandbox"):
        Options(sandbox_read=("/",))
    with pytest.raises(OptionError, match="nor be confined"):
        LLM("demo", sandbox=True)


@pytest.mark.slow
def test_a_link_that_leads_out_of_a_model_is_not_followed(tmp_path: Path) -> None:
    model, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    shutil.copytree(Path(resolve("demo").path), model)
    elsewhere.mkdir()
    (model / "model.safetensors").rename(elsewhere / "model.safetensors")
    (model / "model.safetensors").symlink_to(elsewhere / "model.safetensors")

    async def run(**more: Any) -> None:
        async with AsyncLLM(str(model), **TOY, sandbox=True, **more) as llm:
            await llm.generate(PROMPT, GREEDY)

    with pytest.raises(UnsupportedError, match="model.safetensors") as caught:
        asyncio.run(run())
    assert "--sandbox-read" in caught.value.remedy
    asyncio.run(run(sandbox_read=(str(elsewhere),)))


def test_a_plan_from_a_kernel_that_holds_more_is_refused() -> None:
    plan = resolve("demo", Options(sandbox=True, **TOY))
    assert plan.sandbox is not None
    with pytest.raises(UnsupportedError, match="holds more") as caught:
        confine(evolve(plan, sandbox=evolve(plan.sandbox, lacks=())))
    assert "--lock" in caught.value.remedy
    socket.socket(socket.AF_INET).close()  # nothing has happened to this process


def test_the_plan_names_what_is_open(tmp_path: Path) -> None:
    hub = tmp_path / "models--a--b" / "snapshots" / "0"
    blob = tmp_path / "models--a--b" / "blobs" / "1"
    blob.parent.mkdir(parents=True)
    hub.parent.mkdir()
    model = Path(resolve("demo").path)
    hub.mkdir()
    for file in model.iterdir():
        blob.with_name(file.name).write_bytes(file.read_bytes())
        (hub / file.name).symlink_to(blob.with_name(file.name))
    options = Options(sandbox=True, sandbox_read=(str(tmp_path),), kv_store=str(model), **TOY)
    use = resolve(str(hub), options).sandbox
    assert use is not None and use.name == "landlock"
    assert use.reads == (str(hub), str(tmp_path / "models--a--b"), str(tmp_path))
    assert use.writes == (str(model),)


def test_the_environment_of_a_confined_process_has_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = {"OMP_NUM_THREADS": "2", "LC_ALL": "C", "INFERNO_CPU_LEVEL": "avx2", "PYTHONPATH": ""}
    ours = ("HF_TOKEN", "INFERNO_API_KEY", "INFERNO_STORE", "PGPASSWORD")
    hidden = (*ours, "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "ANYTHING")
    for name, value in {**shown, **dict.fromkeys(hidden, "x")}.items():
        monkeypatch.setenv(name, value)
    confined, free = environment("/box"), environment()
    assert {name: confined[name] for name in shown} == shown == {n: free[n] for n in shown}
    assert not confined.keys() & {*hidden} and free.keys() & {*hidden} == {*hidden} - {*ours}
    assert (confined["TMPDIR"], confined["PYTHONSAFEPATH"]) == ("/box", "1")
