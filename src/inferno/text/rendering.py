"""Renders Jinja chat templates as transformers does, in a sandbox, without importing transformers:
that takes longer than everything else that a first prompt needs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.utils import Namespace

from inferno.text.bounded import (
    SECONDS,
    BoundedEnvironment,
    Budget,
    TemplateLimitError,
    guarded,
    rendered_within,
)

Message = dict[str, Any]

_END = "CONTINUE_FINAL_MESSAGE_TAG "
"""Written behind the message to continue: the prompt ends before it. Its space shows whether the
template trims messages."""


def rendered(
    source: str,
    messages: list[Message],
    tools: list[dict[str, Any]] | None = None,
    seconds: float = SECONDS,
    /,
    *,
    documents: Any = None,
    continue_final_message: bool | str = False,
    add_generation_prompt: bool = False,
    **variables: Any,
) -> str:
    """Render a prompt. `continue_final_message`: end it within the last message, after its content
    or the field of that name. It may take so many `seconds`.

    Raises TemplateSyntaxError for a broken template, ValueError for a message that cannot be
    continued, TemplateLimitError for a template that uses too much, and whatever the template
    raises.
    """
    template = _compiled(source)
    conversation = cast(list[Message], _plain(messages))
    field = "content" if continue_final_message is True else continue_final_message
    text = str(_mark_end(conversation[-1], field, source)) if field else ""
    given = {
        "messages": conversation,
        "tools": _plain(tools),
        "documents": _plain(documents),
        "add_generation_prompt": add_generation_prompt,
        **cast(dict[str, Any], _plain(variables)),
    }
    prompt = rendered_within(template, Budget.of(seconds, *given.values()), given)
    return _cut(prompt, text) if field else prompt


def variables_of(source: str) -> frozenset[str]:
    """Return the names that a template reads and does not set itself; none of a broken one."""
    from jinja2.meta import find_undeclared_variables

    try:
        return frozenset(find_undeclared_variables(_environment().parse(source)))
    except jinja2.TemplateSyntaxError:  # rendering reports it
        return frozenset()


# --- the end of a message that is continued -------------------------------------------------------


def _mark_end(message: Message, field: str, source: str) -> str:
    """Mark the end of a field's text in place. Returns the text."""
    value = message.get(field)
    if value is None:
        raise ValueError(f"the last message has no {field!r} to continue")
    if field not in source:
        raise ValueError(f"the template does not read {field!r}, so it cannot be continued")
    if isinstance(value, str):
        message[field] = value + _END
        return value
    for part in reversed(value):
        if "text" in part:
            text = str(part["text"])
            part["text"] = text + _END
            return text
    raise ValueError(f"the last message's {field!r} has no text to continue")


def _cut(prompt: str, text: str) -> str:
    """Cut a prompt at the mark. A template that trims the mark trims the message too."""
    mark = _END.strip()
    if text.strip() not in prompt or mark not in prompt:
        raise ValueError("the template leaves the end of the last message out")
    end = prompt.rindex(mark)
    return prompt[:end] if prompt.startswith(_END, end) else prompt[:end].rstrip()


# --- the sandbox ----------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return a copy of nothing but JSON's types. Objects have methods that the sandbox does not
    know."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else _plain([*value])
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if callable(dump := getattr(value, "model_dump", None)):  # pydantic's, as clients return them
        return _plain(dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return f"<{type(value).__name__}>"


class _Generation(Extension):
    """`{% generation %}` around an assistant's text. It marks what to train on, and renders its
    body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(Namespace):
    """Jinja's namespace, without the attributes that lead into the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be a name, as in Jinja's
        this, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(this, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"{name!r} is no name for a namespace: it begins with an underscore"
        )


class _Dict:
    """`dict` for templates, which may call it but not reach its class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes what is special in HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(format: str) -> str:
    if len(format) > 100:
        raise TemplateLimitError("the chat template formats a date with more than 100 characters")
    return datetime.now().strftime(format)


@lru_cache(1)
def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = guarded("tojson", _to_json)
    environment.globals.update(
        raise_exception=_raise, strftime_now=_now, dict=_Dict(), namespace=_Namespace
    )
    return environment


@lru_cache(32)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)
