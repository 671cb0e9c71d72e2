"""A torch whose exporter and Python meta kernels are deferred becomes the whole torch by itself."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

IMPORT = """
import sys, threading, time
from inferno import torch_import
with torch_import.deferring():
    import torch
def deferred(): return torch_import.deferred()
assert deferred() == ["torch.export", "torch._meta_registrations"], deferred()
assert "torch._decomp" not in sys.modules and "torch._prims" not in sys.modules
"""
NAMES = "torch.export", "torch._meta_registrations"


def run(code: str, before: str = IMPORT) -> str:
    """Run code in a fresh process after the deferred import. Returns what it prints."""
    found = subprocess.run(
        [sys.executable, "-c", before + textwrap.dedent(code)], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout


def test_computing_on_the_cpu_needs_nothing_that_is_deferred() -> None:
    run("""
        import torch.nn.functional as F
        layer = torch.nn.Linear(8, 8).to(torch.bfloat16)
        with torch.inference_mode():
            y = F.silu(layer(torch.randn(4, 8).bfloat16())).softmax(-1).topk(2).values.float()
        with torch.device("meta"):
            torch.nn.Linear(4, 4), torch.nn.Embedding(4, 4), torch.empty(3)
        torch.set_num_threads(1)
        torch.frombuffer(bytearray(8), dtype=torch.uint8).view(torch.float32)
        x = torch.randn(3, requires_grad=True); (x * x).sum().backward()
        assert deferred(), "it is still deferred"
    """)


def test_a_model_loads_and_answers_without_it() -> None:
    code = """
    from inferno import LLM, SamplingParams, torch_import
    torch_import._LATER_SECONDS = 3600.0
    with LLM("demo", device="cpu", memory="2GiB", lazy_torch=True) as llm:
        llm.generate("import math", SamplingParams(max_tokens=4))
        llm.generate(["a", "b"], SamplingParams(max_tokens=4, temperature=1, top_p=0.9, logprobs=2))
        assert len(torch_import.deferred()) == 2
    """
    run("", textwrap.dedent(code))


@pytest.mark.parametrize(
    "code",
    [
        "torch.export.export",
        "from torch.export import *; Dim",
        "from torch.export import Dim",
        "import torch.export as e; e.Dim",
        "import torch.export.dynamic_shapes",
        "assert 'export' in dir(torch.export)",
        "torch._meta_registrations.activate_meta",
        "import torch._decomp; torch._decomp.decomposition_table",
        "import torch._prims; torch.ops.prims.add",
        "import torch._refs; torch._refs.add",
        "import torch._dynamo",
        "import torch._inductor",
        "torch._dynamo",
        "import torch.utils.benchmark",
        "torch_import.complete()",
    ],
)
def test_whatever_needs_it_loads_all_of_it(code: str) -> None:
    run(f"""
        import types
        before = [sys.modules[name] for name in {NAMES!r}]
        {code}
        assert not deferred()
        assert before == [sys.modules[name] for name in {NAMES!r}], "the same modules"
        assert all(type(module) is types.ModuleType for module in before)
        assert all(module.__spec__.loader is module.__loader__ for module in before)
        assert torch_import._FINDER not in sys.meta_path
        import importlib
        importlib.import_module("torch._decomp").decomposition_table
    """)


SAME = """
        import torch.utils._pytree
        from torch._subclasses.fake_tensor import FakeTensorMode
        def listed():
            names = sorted(n for n in sys.modules if n.split(".")[0] == "torch")
            kernels = sorted(torch._C._dispatch_get_registrations_for_dispatch_key("Meta"))
            composite = torch._C._dispatch_get_registrations_for_dispatch_key(
                "CompositeImplicitAutograd")
            print(len(kernels), hash(tuple(kernels)), hash(tuple(sorted(composite))))
            print(names)
            print(sorted(torch.export.__all__), sorted(torch.__dict__))
            print(sorted(map(str, torch._decomp.decomposition_table)))
            print(sorted(map(str, torch._decomp.meta_table)))
            print(sorted(dir(torch.ops.prims)), sorted(dir(torch.ops.higher_order)))
            print(sorted(map(str, torch.utils._pytree.SUPPORTED_NODES)))
"""


def test_completed_it_is_the_torch_that_import_gives() -> None:
    """Modules, meta kernels, decompositions, operators and pytree nodes."""
    whole = "import sys\nimport torch\nimport os\n"
    code = SAME + "        listed()\n"
    fixed = "import os, sys\nif os.environ.get('PYTHONHASHSEED') != '0':\n"
    fixed += "    os.environ['PYTHONHASHSEED'] = '0'; os.execv(sys.executable, sys.orig_argv)\n"
    expected = run(code, fixed + whole)
    late = run(code, fixed + IMPORT + "torch_import.complete()\n")
    drop = "'torch._"  # nothing of inferno is a module of torch
    assert drop in expected
    assert late == expected


def test_the_compiler_the_exporter_and_fake_tensors_work_afterwards() -> None:
    run("""
        def f(x, y): return torch.nn.functional.gelu(x @ y).sum(-1)
        x, y = torch.randn(3, 4), torch.randn(4, 5)
        compiled = torch.compile(f, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x, y), f(x, y))
        class M(torch.nn.Module):
            def forward(self, x, y): return f(x, y)
        program = torch.export.export(M(), (x, y))
        assert torch.equal(program.module()(x, y), f(x, y))
        program.run_decompositions()
        from torch._subclasses import FakeTensorMode
        with FakeTensorMode() as mode:
            assert f(mode.from_tensor(x), mode.from_tensor(y)).shape == (3,)
        from torch.fx.experimental.proxy_tensor import make_fx
        assert torch.equal(make_fx(f)(x, y)(x, y), f(x, y))
        assert torch.linalg.svd(torch.empty(4, 3, device="meta")).S.shape == (3,)
    """)


def test_until_then_meta_kernels_in_python_are_missing_loudly() -> None:
    run("""
        name = next(n for n in ("_weight_norm_interface", "cholesky_inverse", "ormqr")
                    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::" + n, "Meta"))
        a = torch.empty(3, 3, device="meta")
        call = {"cholesky_inverse": lambda: torch.cholesky_inverse(a),
                "ormqr": lambda: torch.ormqr(a, torch.empty(3, device="meta"), a),
                "_weight_norm_interface": lambda: torch._weight_norm_interface(
                    a, torch.empty(3, 1, device="meta"))}[name]
        try:
            call()
        except NotImplementedError:
            assert torch_import.complete()
        else:
            raise AssertionError(f"{name} has a meta kernel in C++ now: choose another")
        call()
    """)


def test_the_rest_is_loaded_by_itself_some_time_after_loading() -> None:
    run("""
        torch_import._LATER_SECONDS = 0.0
        torch_import.complete_later()
        [thread] = [t for t in threading.enumerate() if t.name == "inferno rest of torch"]
        thread.join(120)
        assert not deferred() and not thread.is_alive()
        threads = threading.active_count()
        torch_import.complete_later()
        assert threading.active_count() == threads, "there is nothing to load"
    """)


def test_a_failed_load_leaves_the_whole_torch() -> None:
    code = """
    from inferno import torch_import
    try:
        with torch_import.deferring():
            import torch
            raise KeyError
    except KeyError:
        import sys
        assert not torch_import.deferred() and torch_import._FINDER not in sys.meta_path
    """
    run("", textwrap.dedent(code))


@pytest.mark.parametrize("before", ["import torch\n", ""])
def test_nothing_is_deferred_for_who_wants_or_has_the_whole_torch(before: str) -> None:
    wanted = bool(before)
    code = f"""
    from inferno import torch_import
    with torch_import.deferring({wanted}):
        import torch, sys
        assert not torch_import.deferred() and torch_import._FINDER not in sys.meta_path
    assert "torch._decomp" in sys.modules
    """
    run("", before + textwrap.dedent(code))
