"""Writes the parts of the reference that the software itself knows, between `<!-- begin NAME -->`
and `<!-- end -->`.

    python docs/generate.py     brings every page up to date, names those that changed

Without it a page can lie; `tests/test_docs.py` fails when a page is not what this would write.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import attrs
import click

from inferno import cli, contracts, errors, hookspecs
from inferno.catalog import GROUPS, KINDS, Catalog, load_catalog
from inferno.cli import config
from inferno.llm import outputs
from inferno.plan import options, plan
from inferno.request import sampling_params
from inferno.server import api
from inferno.server import options as server_options
from inferno.server.access import keys
from inferno.server.endpoints import fields_by_endpoint, installed_apis
from inferno.server.fields.support import Field
from inferno.server.http.apis import Apis

DOCS = Path(__file__).parent
FLOORS = DOCS.parent / "tests" / "test_floors.py"
_BLOCK = re.compile(r"(<!-- begin (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# What the code leaves unsaid because the name says it; a table has no room for silence.
_UNSAID = {
    "name": "How it is chosen and shown.",
    "priority": "Of the offers that do not refuse, the highest priority wins; a tie is an error.",
    "api_version": "The version of the hook's contract that it speaks.",
    "vocab_size": "Columns of the logits.",
    "num_heads": "Query heads.",
    "num_kv_heads": "Key/value heads.",
    "head_dim": "Elements of a head's vector.",
    "AttentionNeed.dtype": "Of queries and outputs.",
    "AttentionNeed.device": "Where the layer computes.",
    "KernelNeed.device": "Where the op computes.",
    "Device.kind": "By torch's names.",
    "GrammarSpec.kind": "How the text is written.",
    "GrammarSpec.text": "The grammar; empty for any JSON object.",
    "ProcessorContext.prompt_token_ids": "The prompt, as the model saw it.",
    "ProcessorContext.eos_token_ids": "The model's end tokens; empty if the request ignores them.",
    "RequestField.type": "What the value must be.",
    "RequestField.maximum": "As `minimum`.",
    "AttentionBackend.build": "build(need) -> the layer's `Attend`.",
    "TensorInfo.shape": "As stored.",
    "TensorInfo.nbytes": "As stored.",
    "CacheTensor.shape": "For one block.",
    "CacheTensor.dtype": "By torch's names.",
    "TextAssets.chat_template": "A Jinja template, as a string.",
    "DenseCheckpoint.text": "Its tokenizer files and chat template.",
    "FetchOptions.revision": "Branch, tag or commit.",
    "Checkpoint.tensors": "Every stored tensor by name.",
    "Checkpoint.text": "Its tokenizer files and chat template.",
    "Checkpoint.close": "Closes its files.",
    "Options.progress": "Draw progress bars on stderr.",
    "Options.served_model_name": "The model's name in responses.",
    "RequestOutput.request_id": "The caller's, or a new one.",
    "RequestOutput.prompt_token_ids": "The prompt as the model saw it.",
    "RequestOutput.outputs": "One per `n`.",
    "RequestOutput.finished": "Always true here, as in vLLM.",
    "RequestOutput.metrics": "When it arrived, had its first token and ended, in seconds "
    "since 1970.",
    "CompletionOutput.index": "Which of the `n` outputs.",
    "CompletionOutput.text": "Without the stop string, unless requested.",
    "CompletionOutput.token_ids": "Includes a token that ended the output.",
    "CompletionOutput.cumulative_logprob": "The sum over its tokens, if requested.",
}


PLUGINS = DOCS.parent / "plugins"
FAMILIES = PLUGINS / "models"
HOST = "inferno-transformers"
FALLBACK = FAMILIES / HOST / "tools" / "architectures.json"
"""What `tools/coverage.py --architectures` has found: to ask again takes minutes."""
PREFIXES = {"package": ("package:",), "modelscope": ("modelscope:",)}
"""What references begin with, for sources whose list depends on the machine."""
INDEX = PLUGINS / "index" / "inferno-index" / "src" / "inferno_index" / "hints.json"
SAMPLING = ("inferno.server.fields", "inferno.server.responses", "inferno_anthropic")
"""Packages whose module `sampling` makes a class of sampling parameters at import."""


def main() -> None:
    for page, text in pages():
        if page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            print(page)


def pages() -> Iterator[tuple[Path, str]]:
    """Every page that has such parts, and what it should say."""
    for page in sorted([*DOCS.glob("reference/*.md"), *DOCS.glob("explanation/*.md")]):
        text = page.read_text(encoding="utf-8")
        yield page, _BLOCK.sub(lambda m: f"{m[1]}\n{_block(*m[2].split())}\n{m[3]}", text)
    yield INDEX, index()
    for package in SAMPLING:
        module = import_module(f"{package}.sampling")
        yield Path(str(module.__file__)).with_suffix(".pyi"), sampling_stub(module)


def _block(kind: str, *names: str) -> str:
    return _KINDS[kind](*names).rstrip() + "\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


# --- hooks and contracts --------------------------------------------------------------------------


def hook(name: str) -> str:
    doc = _clean(hookspecs.HOOKS[name].function.__doc__)
    oldest, newest = hookspecs.HOOKS[name].versions
    version = f"version {newest}" if oldest == newest else f"versions {oldest} and {newest}"
    return (
        f"```python\n@hookimpl\ndef {name}() -> list[{KINDS[name].__name__}]: "
        f"...\n```\n\n{doc} API {version}."
    )


def fields(module: str, name: str) -> str:
    """An attrs class: field, type, default, meaning."""
    rows = []
    for statement, doc in _documented(_class(_MODULES[module], name)):
        if isinstance(statement, ast.AnnAssign):
            field = ast.unparse(statement.target)
            meaning = doc or _unsaid(name, field)
            rows.append(
                (
                    f"`{field}`",
                    f"`{ast.unparse(statement.annotation)}`",
                    _default(statement),
                    meaning,
                )
            )
    return _table(("field", "type", "default", "meaning"), rows)


def sampling() -> str:
    """Each sampling parameter, as its field describes it."""
    meanings = {p.name: p.help for p in sampling_params.parameters()}
    rows = [
        (
            f"`{(field := ast.unparse(statement.target))}`",
            f"`{ast.unparse(statement.annotation)}`",
            _default(statement),
            meanings[field],
        )
        for statement in _class(sampling_params, "SamplingParams").body
        if isinstance(statement, ast.AnnAssign)
    ]
    return _table(("field", "type", "default", "meaning"), rows)


def protocol(module: str, name: str) -> str:
    """A protocol: each method with what it promises."""
    rows = []
    for statement, doc in _documented(_class(_MODULES[module], name)):
        if isinstance(statement, ast.FunctionDef):
            arguments = ast.unparse(statement.args).removeprefix("self").removeprefix(", ")
            called = (
                statement.name if statement.decorator_list else f"{statement.name}({arguments})"
            )
            assert statement.returns is not None, "the contracts are typed"
            rows.append(
                (
                    f"`{called}`",
                    f"`{ast.unparse(statement.returns)}`",
                    doc or _unsaid(name, statement.name),
                )
            )
    return _table(("member", "returns", "meaning"), rows)


def _unsaid(owner: str, field: str) -> str:
    if owner == "Options" and f"Options.{field}" not in _UNSAID:  # the command line says it
        command = cli.cli.get_command(click.Context(cli.cli), "serve")
        assert command is not None, "COMMANDS lists it"
        return next(
            _clean(o.help)
            for o in command.params
            if isinstance(o, click.Option) and o.name == field
        )
    return _UNSAID.get(f"{owner}.{field}") or _UNSAID[field]


def methods(module: str, name: str) -> str:
    """A class's public methods and properties, those whose name does not say it all."""
    rows = []
    for statement, doc in _documented(_class(import_module(module), name)):
        if isinstance(statement, _FUNCTIONS) and doc and not statement.name.startswith("_"):
            waits = "await " if isinstance(statement, ast.AsyncFunctionDef) else ""
            rows.append((f"`{waits}{_call(statement)}`", doc))
    return _table(("member", "meaning"), rows)


def function(module: str, name: str) -> str:
    """A function's call and docstring."""
    found = next(
        s for s in _tree(import_module(module)).body if isinstance(s, _FUNCTIONS) and s.name == name
    )
    return f"```text\n{_call(found)}\n```\n\n{ast.get_docstring(found)}"


def kit() -> str:
    """The classes of `inferno.testing`, by what their docstrings say. Read, not imported: they need
    pytest."""
    rows = []
    for path in sorted((Path(cli.__file__).parents[1] / "testing").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Tests"):
                rows.append((f"`{node.name}`", _clean(ast.get_docstring(node))))
    return _table(("class", "how to use it"), rows)


def _call(found: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """`name(arguments)` without types; a property is its name."""
    if any(ast.unparse(decorator) == "property" for decorator in found.decorator_list):
        return found.name
    for argument in ast.walk(found.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    arguments = ast.unparse(found.args)
    return f"{found.name}({re.sub(r'^(self|cls)(, /)?(, )?', '', arguments)})"


def _tree(module: ModuleType) -> ast.Module:
    assert module.__file__, "a module of ours is a file"
    return ast.parse(Path(module.__file__).read_text(encoding="utf-8"))


def _class(module: ModuleType, name: str) -> ast.ClassDef:
    module = import_module(getattr(module, name).__module__)
    return next(
        node for node in _tree(module).body if isinstance(node, ast.ClassDef) and node.name == name
    )


def _documented(node: ast.ClassDef) -> Iterator[tuple[ast.stmt, str]]:
    """Each statement with its docstring: a field's is the string after it."""
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        doc = ast.get_docstring(statement) if isinstance(statement, _FUNCTIONS) else None
        if (
            isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            doc = after.value.value
        yield statement, _clean(doc)


def _default(statement: ast.AnnAssign) -> str:
    value = statement.value
    if isinstance(value, ast.Call):  # attrs.field(...)
        given = {k.arg: k.value for k in value.keywords}
        if "default" in given:
            return f"`{ast.unparse(given['default'])}`"
        if "factory" in given:
            return "empty"
        return "" if ast.unparse(value.func) == "field" else f"`{ast.unparse(value)}`"
    return "" if value is None else f"`{ast.unparse(value)}`"


def _clean(doc: str | None) -> str:
    return " ".join((doc or "").split())


# --- model families -------------------------------------------------------------------------------


def _architectures() -> dict[str, list[contracts.Architecture]]:
    """Those of this repository, by distribution."""
    found: dict[str, list[contracts.Architecture]] = {}
    for offer in load_catalog().of("inferno_architectures"):
        if (FAMILIES / offer.distribution).is_dir() and offer.distribution != HOST:
            found.setdefault(offer.distribution, []).append(offer.item)
    return dict(sorted(found.items()))


def sampling_stub(module: ModuleType) -> str:
    """What type checkers read of a module that makes a class of sampling parameters at import."""
    (made,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    )
    head = "# Written by docs/generate.py from SamplingParams.\nfrom typing import Any\n\n"
    head += "from attrs import frozen\n"
    if hasattr(module, "SAMPLING"):
        head += "\nfrom inferno.server.api import Parameter\n\nSAMPLING: tuple[Parameter, ...]\n"
    fields = (
        f"    {field.name}: {str(field.type).replace('typing.', '')} = None"
        for field in attrs.fields(made)
    )
    return f"{head}\n@frozen(kw_only=True)\nclass {made.__name__}:\n" + "\n".join(fields) + "\n"


def index() -> str:
    """What the plugins of this repository provide, by kind and name, each with its distribution."""
    catalog = load_catalog(groups=GROUPS)
    hints: dict[str, dict[str, str]] = {
        "architecture": _named_architectures(),
        "format": _declared(catalog, "inferno_checkpoint_formats")
        | _declared(catalog, "inferno_adapter_formats"),
        "scheme": _declared(catalog, "inferno_quant_schemes") | _quant_methods(),
        "kernels": _declared(catalog, "inferno_kernels"),
        "attention": _declared(catalog, "inferno_attention_backends"),
        "cache policy": _declared(catalog, "inferno_cache_policies"),
        "queue policy": _declared(catalog, "inferno_queue_policies"),
        "sandbox": _declared(catalog, "inferno_sandboxes"),
        "store": _declared(catalog, "inferno_stores"),
        "chat format": _chat_formats(catalog),
        "grammar": {
            kind: offer.distribution
            for offer in catalog.of("inferno_grammars")
            if _is_ours(offer.distribution)
            for kind in offer.item.kinds
        },
        "command": _declared(catalog, "inferno_commands"),
        "endpoint": {
            path: offer.distribution
            for offer in catalog.of("inferno_endpoints")
            if _is_ours(offer.distribution)
            for path in offer.item.paths
        },
        "model": {
            ref: offer.distribution
            for offer in catalog.of("inferno_sources")
            if _is_ours(offer.distribution)
            for ref in PREFIXES.get(offer.item.name) or offer.item.list()
        },
        "size": {
            size: entry.dist.name
            for entry in entry_points(group="inferno_gpu_report.sizes")
            if entry.dist is not None and _is_ours(entry.dist.name)
            for size in entry.load()
        },
    }
    held = {kind: dict(sorted(names.items())) for kind, names in hints.items() if names}
    return json.dumps(held, indent=1) + "\n"


def _is_ours(distribution: str) -> bool:
    return any(PLUGINS.glob(f"*/{distribution}/pyproject.toml"))


def _declared(catalog: Catalog, hook: str) -> dict[str, str]:
    return {o.item.name: o.distribution for o in catalog.of(hook) if _is_ours(o.distribution)}


def _chat_formats(catalog: Catalog) -> dict[str, str]:
    """By name, and `*` for any that no installed plugin knows."""
    names = _declared(catalog, "inferno_chat_formats")
    return {**names, "*": next(iter(names.values()))} if names else {}


def _quant_methods() -> dict[str, str]:
    """A quantization plugin is called after the `quant_method` that it reads."""
    names = [path.name for path in (PLUGINS / "quant").iterdir()]
    return {name.removeprefix("inferno-"): name for name in sorted(names)}


def _named_architectures() -> dict[str, str]:
    """By the names of every format: `config.json`'s with aliases, and those of its dialects."""
    names = {
        name: offer.distribution
        for offer in load_catalog().of("inferno_architectures")
        if _is_ours(offer.distribution)
        for name in (offer.item.name, *offer.item.aliases)
    }
    by_priority = [
        (dialect.priority, dialect.architecture, distribution)
        for distribution, held in _architectures().items()
        for a in held
        for own in a.dialects.values()
        for dialect in (own, *own.variants)
    ]
    ordered = sorted(by_priority, key=lambda entry: entry[0])
    return names | {name: distribution for _, name, distribution in ordered}


def chat_formats() -> str:
    """Each chat format, and the models that have it."""
    rows = [
        (f"`{offer.item.name}`", offer.item.models, offer.distribution)
        for offer in load_catalog().of("inferno_chat_formats")
        if offer.distribution == "inferno" or _is_ours(offer.distribution)
    ]
    return _table(("format", "models", "distribution"), rows)


def families() -> str:
    """Each family: what it is found by, the formats it loads from, and the configs that the
    conformance kit checks."""
    parts = []
    for distribution, architectures in _architectures().items():
        names = [f"`{name}`" for a in architectures for name in (a.name, *a.aliases)]
        rows = [("architectures", ", ".join(names))]
        for name in dict.fromkeys(name for a in architectures for name in a.dialects):
            own = [a.dialects[name] for a in architectures if name in a.dialects]
            theirs = [d.architecture for each in own for d in (each, *each.variants)]
            rows.append((name.upper(), ", ".join(f"`{n}`" for n in dict.fromkeys(theirs))))
        kinds = [d.kind for a in architectures for d in a.encoders.values()]
        if kinds:
            found = ", ".join(f"`{kind}`" for kind in dict.fromkeys(kinds))
            rows.append(("images of GGUF", f"`mmproj` files of {found}"))
        if checkpoints := [c for a in architectures for c in a.checkpoints]:
            rows.append(("checkpoints", ", ".join(checkpoints)))
        rows += [("checked as", doc) for doc in _checked(FAMILIES / distribution / "tests")]
        parts.append(f"## {distribution}\n\n{_table(('', ''), rows)}")
    return "\n\n".join(parts)


def vllm_architectures() -> str:
    """Each text architecture of vLLM's model registry: what runs it, or why nothing does."""
    held = json.loads(FALLBACK.read_text(encoding="utf-8"))
    families = _architectures()
    rows = []
    for name, fallback in held["fallback"].items():
        native = [
            distribution
            for distribution, architectures in families.items()
            if any(each.is_named(name) for each in architectures)
        ]
        if native:
            rows.append((f"`{name}`", "native", native[0]))
        elif fallback == "runs":
            rows.append((f"`{name}`", "fallback", HOST))
        else:
            rows.append((f"`{name}`", "refused", fallback))
    counts = Counter(state for _, state, _ in rows)
    said = ", ".join(f"{counts[state]} {state}" for state in ("native", "fallback", "refused"))
    table = _table(("architecture", "state", "by what, or why not"), rows)
    return f"Of {len(rows)}: {said} (transformers {held['transformers']}).\n\n{table}"


def _checked(tests: Path) -> Iterator[str]:
    """What the conformance classes say they imitate."""
    for path in sorted(tests.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            bases = [ast.unparse(b) for b in node.bases] if isinstance(node, ast.ClassDef) else []
            if (
                isinstance(node, ast.ClassDef)
                and (doc := ast.get_docstring(node))
                and any("Test" in b for b in bases)
            ):
                yield _clean(doc)


# --- command line, HTTP, errors -------------------------------------------------------------------


def commands() -> str:
    group = cli.cli
    context = click.Context(group, info_name="inferno")
    return "\n\n".join(_command(name, context) for name in group.list_commands(context))


def _command(name: str, parent: click.Context) -> str:
    command = cli.cli.get_command(parent, name)
    assert command is not None, "COMMANDS lists what exists"
    context = click.Context(command, info_name=name, parent=parent)
    usage = command.get_usage(context).removeprefix("Usage: ")
    rows = [
        (
            _flags(option, context),
            _clean(option.help) + _variable(option),
            _option_default(option, context),
        )
        for option in command.params
        if isinstance(option, click.Option)
    ]
    options = _table(("option", "meaning", "default"), rows)
    return f"## inferno {name}\n\n`{_clean(usage)}`\n\n{_clean(command.help)}\n\n{options}"


def _flags(option: click.Option, context: click.Context) -> str:
    value = "" if option.is_flag else " " + option.make_metavar(context).replace(" RANGE", "")
    return ", ".join(f"`{flag}{value}`" for flag in (*option.opts, *option.secondary_opts))


def _variable(option: click.Option) -> str:
    """The environment's variables besides the one that is named as the flag."""
    others = option.envvar[1:] if isinstance(option.envvar, list) else ()
    return "".join(f" Environment: `{name}` as well." for name in others)


def _option_default(option: click.Option, context: click.Context) -> str:
    default = option.get_default(context)
    if (
        option.is_flag
        or default is None
        or default == ()
        or not isinstance(default, str | int | float | tuple)
    ):
        return ""
    return f"`{' '.join(map(str, default)) if isinstance(default, tuple) else default}`"


def endpoints() -> Mapping[str, Sequence[Field]]:
    """The fields of every endpoint of this repository's distributions."""
    known = installed_apis().mounted
    ours = [each for each in known if _is_ours(each.distribution)]
    return fields_by_endpoint(Apis(tuple(ours)))


def endpoint(path: str) -> str:
    rows = []
    for field in endpoints()[path]:
        note = field.note + (
            f" Fine: {', '.join(f'`{json.dumps(v)}`' for v in field.harmless)}."
            if field.harmless
            else ""
        )
        rows.append((f"`{field.name}`", field.verdict, note))
    return _table(("field", "verdict", "note"), rows)


def error_table() -> str:
    rows = [
        (
            f"`{k.__name__}`",
            str(k.exit_code),
            str(k.status),
            f"`{k.code}`" if k.code else "",
            _clean(k.__doc__),
        )
        for k in errors.ERRORS.values()
    ]
    return _table(("error", "exit code", "HTTP status", "code", "meaning"), rows)


def floors() -> str:
    """The rooms from top to bottom, as the test has them."""
    tree = ast.parse(FLOORS.read_text(encoding="utf-8"))
    assigned = {ast.unparse(s.targets[0]): s.value for s in tree.body if isinstance(s, ast.Assign)}
    lines = [
        ", ".join(f"`{room}`" for room in sorted(floor))
        for floor in ast.literal_eval(assigned["FLOORS"])
    ]
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))


_MODULES = {
    "contracts": contracts,
    "plan": plan,
    "options": options,
    "server.options": server_options,
    "outputs": outputs,
    "cli.config": config,
    "server": api,
    "server.keys": keys,
}
_KINDS: dict[str, Callable[..., str]] = {
    "hook": hook,
    "fields": fields,
    "sampling": sampling,
    "protocol": protocol,
    "commands": commands,
    "endpoint": endpoint,
    "errors": error_table,
    "floors": floors,
    "methods": methods,
    "function": function,
    "kit": kit,
    "families": families,
    "vllm-architectures": vllm_architectures,
    "chat-formats": chat_formats,
}

if __name__ == "__main__":
    main()
