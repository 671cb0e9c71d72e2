"""Breaks the kernel in one place after another, and says which breaks no test notices.

    python tools/mutate.py [--sample 120] [--seed 1] [--only 'inferno.core.*']

mutmut makes the mutants of core/, plan/ and weights/, and notes which tests reach which function:
some minutes, kept in `mutants/` until that folder is deleted. A random sample is run, as all would
take a day. Not drawn are mutants that only change the text of an error or of the log.

The tests of a mutant run in a process forked after everything is imported, the quickest first, up
to `--seconds` of what they took when they were noted. A survivor may have a test that is slower:
`--only NAME --seconds 9999` runs all that reach it, and `mutmut show NAME` prints it again.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import resource
import signal
from collections import Counter
from contextlib import redirect_stdout
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path

import libcst as cst
from mutmut import __main__ as mutmut
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant, read_functions_from_index
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import load_stats
from mutmut.utils.file_utils import (
    copy_also_copy_files,
    copy_src_dir,
    setup_source_paths,
    walk_mutatable_files,
)
from mutmut.utils.format_utils import mangled_name_from_mutant_name
from mutmut.workers.isolation import get_mutant_runner

SURVIVED, NO_TESTS = "survived", "reached by no test"
ENDLESS = "did not end"
NO_TESTS_COLLECTED = 5  # pytest's exit code


class _WithoutMessages(ast.NodeTransformer):
    """Removes what errors, assertions and the log say."""

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        if isinstance(node.exc, ast.Call):
            node.exc.args, node.exc.keywords = [], []
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        node.msg = None
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        if ast.unparse(node.targets[0]) in ("cause", "remedy"):
            node.value = ast.Constant("")
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        if ast.unparse(node.func).startswith("log."):
            node.args, node.keywords = [], []
        return node


def _meaning(function: cst.FunctionDef) -> str:
    tree = ast.parse(cst.Module(body=[function.with_changes(leading_lines=[])]).code)
    return ast.dump(_WithoutMessages().visit(tree))


def changes_a_message_only(name: str, path: Path) -> bool:
    """Return whether a mutant changes only the text of an error or of the log."""
    functions = read_functions_from_index(name, path)
    return functions is not None and _meaning(functions[0]) == _meaning(functions[1])


def generated() -> dict[str, Path]:
    """Make `mutants/`, unless it is up to date. Returns the path of the module of each mutant."""
    set_mutant_under_test("mutant_generation")
    Path("mutants").mkdir(exist_ok=True)
    with redirect_stdout(StringIO()):  # a line for each file
        copy_src_dir()
        copy_also_copy_files()
        setup_source_paths()
        mutmut.create_mutants(2)
    modules: dict[str, Path] = {}
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        modules |= dict.fromkeys(data.exit_code_by_key, Path(path))
    return modules


def sample(modules: dict[str, Path], size: int, seed: int, only: str) -> list[str]:
    """Draw mutants whose names match `only`. A larger sample begins with the smaller one."""
    names = sorted(name for name in modules if fnmatchcase(name, only))
    random.Random(seed).shuffle(names)
    drawn: list[str] = []
    for name in names:
        if len(drawn) == size:
            break
        if not changes_a_message_only(name, modules[name]):
            drawn.append(name)
    return drawn


def tests_of(name: str, seconds: float) -> list[str]:
    """Return the tests that reach a mutant's function, the quickest first, as many as take
    `seconds` together."""
    took = state().duration_by_test
    reaching = state().tests_by_mangled_function_name.get(mangled_name_from_mutant_name(name), ())
    tests: list[str] = []
    for test in sorted(reaching, key=lambda test: (took[test], test)):
        seconds -= took[test]
        if seconds < 0 and tests:
            break
        tests.append(test)
    return tests


def outcome(name: str, tests: list[str], runner: PytestRunner) -> str:
    """Run tests on a mutant in a fork of this process."""
    if not tests:
        return NO_TESTS
    if (child := os.fork()) == 0:
        limit = 60 + 4 * int(sum(state().duration_by_test[test] for test in tests))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        signal.alarm(4 * limit)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        set_mutant_under_test(name)
        os._exit(runner.run_tests(mutant_name=name, tests=tests))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return ENDLESS if os.WTERMSIG(status) != signal.SIGSEGV else "crashed"
    return {0: SURVIVED, NO_TESTS_COLLECTED: NO_TESTS}.get(os.WEXITSTATUS(status), "failed a test")


def main() -> None:
    """Run the sample and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sample", type=int, default=120, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of mutants")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for each mutant")
    options = parser.parse_args()
    modules = generated()
    names = sample(modules, options.sample, options.seed, options.only)
    print(f"{len(names)} of {len(modules)} mutants, seed {options.seed}", flush=True)
    if not load_stats():
        mutmut.run_stats_collection(get_mutant_runner())
    runner, outcomes = PytestRunner(), Counter[str]()
    set_mutant_under_test("")
    with redirect_stdout(StringIO()):
        runner.warm_up()
    for name in names:
        result = outcome(name, tests_of(name, options.seconds), runner)
        outcomes[result] += 1
        if result in (SURVIVED, NO_TESTS, ENDLESS):
            print(
                f"\n{name}: {result}\n{get_diff_for_mutant(name, path=modules[name])}", flush=True
            )
    print(", ".join(f"{count} {result}" for result, count in outcomes.most_common()))
    unnoticed = outcomes[SURVIVED] + outcomes[NO_TESTS]
    print(f"{outcomes.total() - unnoticed} of {outcomes.total()} noticed")


if __name__ == "__main__":
    main()
