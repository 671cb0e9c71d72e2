"""Arguments that are not JSON: text typed by the tool's schema, Python calls, Gemma's objects."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferno_chat_formats.reader import MAX_DEPTH, Broken, Text, Wait, parse_json

Tools = Mapping[str, Mapping[str, Any]]
"""The parameters' JSON schema of each tool, by name."""

_QUOTE = '<|"|>'
_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def tools_of(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """Return the schemas of OpenAI's function tools, by name."""
    functions = [tool.get("function") for tool in tools]
    return {
        str(f["name"]): f["parameters"] if isinstance(f.get("parameters"), Mapping) else {}
        for f in functions
        if isinstance(f, Mapping) and f.get("name")
    }


def property_of(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the schema of one parameter; empty if there is none."""
    properties = schema.get("properties")
    value = properties.get(key) if isinstance(properties, Mapping) else None
    return resolve(schema, value) if isinstance(value, Mapping) else {}


def resolve(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference to a definition in the root schema."""
    for _ in range(8):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            return {}
        schema = target
    return {}


def types_of(root: Mapping[str, Any], schema: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Return the JSON types that a schema allows; empty if it does not say."""
    schema = resolve(root, schema)
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, Sequence):
        return {str(each) for each in declared}
    if isinstance(values := schema.get("enum"), Sequence):
        return {_type_of(value) for value in values}
    if "const" in schema:
        return {_type_of(schema["const"])}
    names = set[str]()
    for key in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(key) or () if depth < 4 else ():
            if isinstance(each, Mapping):
                names |= types_of(root, each, depth + 1)
    return names


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, types in _JSON_TYPES.items() if isinstance(value, types)), "string")


def typed(text: str, root: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    """Convert a parameter's text to what its schema asks for. What does not parse stays text."""
    allowed = types_of(root, schema)
    if allowed == {"string"}:
        return text
    stripped = text.strip()
    value = _parsed(stripped)
    if value is None and stripped != "null":
        return text
    if not allowed:  # no schema: JSON that a person would not take for prose
        return text if isinstance(value, str) else value
    if "string" in allowed:
        others = allowed - {"string"}
        return value if value is None and "null" in others else text
    return value


def _parsed(text: str) -> Any:
    spelled = {"True": True, "False": False, "None": None}
    if text in spelled:
        return spelled[text]
    try:
        return parse_json(text)
    except Broken:
        return None


# --- Python ---------------------------------------------------------------------------------------


def python_calls(source: str) -> list[tuple[str, dict[str, Any]]]:
    """Parse `[f(a=1), g(b="x")]`, or calls on lines of their own. Raises Broken."""
    try:
        tree = ast.parse(source.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Broken from error
    nodes: list[ast.expr] = []
    for statement in tree.body:
        if not isinstance(statement, ast.Expr):
            raise Broken
        value = statement.value
        nodes += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    if not nodes:
        raise Broken
    return [_python_call(node) for node in nodes]


def _python_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args:
        raise Broken
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise Broken
        arguments[keyword.arg] = _literal(keyword.value)
    # A name of the built-in tools of Llama 3 is followed by .call.
    return _dotted(node.func).removesuffix(".call"), arguments


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise Broken


def _literal(node: ast.expr, depth: int = 0) -> Any:
    if depth > MAX_DEPTH // 4:
        raise Broken
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.Name(id="true"):
            return True
        case ast.Name(id="false"):
            return False
        case ast.Name(id="null"):
            return None
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(each, depth + 1) for each in elements]
        case ast.Dict(keys=keys, values=values):
            members = {}
            for key, each in zip(keys, values, strict=True):
                if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                    raise Broken
                members[key.value] = _literal(each, depth + 1)
            return members
    raise Broken


# --- Gemma ----------------------------------------------------------------------------------------


def gemma_object(text: Text) -> Wait[dict[str, Any]]:
    """Read `{key:<|"|>text<|"|>,other:[1,true]}`."""
    value = yield from _gemma(text, 0)
    if not isinstance(value, dict):
        raise Broken
    return value


def _gemma(text: Text, depth: int) -> Wait[Any]:
    if depth > MAX_DEPTH // 8:
        raise Broken
    if (yield from text.accept(_QUOTE)):
        return (yield from text.until(_QUOTE))
    yield from text.skip_space()
    first = yield from text.peek()
    if first == '"':  # as in JSON
        return parse_json((yield from text.quoted()))
    if first == "{":
        return (yield from _gemma_members(text, depth))
    if first == "[":
        return (yield from _gemma_elements(text, depth))
    word = ""
    while (c := (yield from text.peek())) not in ("", ",", "}", "]"):
        word, text.pos = word + c, text.pos + 1
        if len(word) > 64:
            raise Broken
    try:
        value = json.loads(word)
    except ValueError as error:
        raise Broken from error
    if isinstance(value, float) and not -1e308 <= value <= 1e308:
        raise Broken
    return value


def _gemma_members(text: Text, depth: int) -> Wait[dict[str, Any]]:
    text.pos += 1
    members: dict[str, Any] = {}
    if (yield from text.accept("}")):
        return members
    while True:
        quoted = yield from text.accept(_QUOTE)
        key = yield from text.until(_QUOTE if quoted else ":", most=256)
        if quoted:
            yield from text.expect(":")
        elif key.strip().startswith('"'):  # as in JSON
            key = str(parse_json(key.strip()))
        if (key := key.strip()) in members or not key:
            raise Broken
        members[key] = yield from _gemma(text, depth + 1)
        if (yield from text.accept("}")):
            return members
        yield from text.expect(",")


def _gemma_elements(text: Text, depth: int) -> Wait[list[Any]]:
    text.pos += 1
    elements: list[Any] = []
    if (yield from text.accept("]")):
        return elements
    while True:
        elements.append((yield from _gemma(text, depth + 1)))
        if (yield from text.accept("]")):
            return elements
        yield from text.expect(",")
