"""Parses request bodies with cattrs; errors name the field's path.

Nothing is converted: a number in quotes is an error that the client should see.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import cattrs
import cattrs.gen
import msgspec
from attrs import fields_dict, frozen
from cattrs.errors import IterableValidationError, IterableValidationNote
from litestar import post
from litestar.dto import AbstractDTO, DTOConfig
from litestar.typing import FieldDefinition

from inferno.contracts import RequestField
from inferno.errors import RequestError
from inferno.server.fields.plugin_fields import applied
from inferno.server.fields.schema import ERROR_RESPONSES, Message, StreamOptions
from inferno.server.fields.support import Field
from inferno.server.http.bounds import check_shape, check_size
from inferno.server.http.errors import shorten, unsupported

T = TypeVar("T")
Body = TypeVar("Body", covariant=True)
_MAX_PROBLEMS = 5
"""Maximum of errors listed in one answer."""
NO_FIELDS: Mapping[str, RequestField] = {}
_MAX_INT = 2**62
"""Limit of integers that can be sent to the engine."""


@frozen
class Parsed(Generic[Body]):
    """A request body, and its fields without effect."""

    body: Body
    ignored: tuple[str, ...]
    """Names of fields that have no effect; the answer lists them."""


def decode(
    body: bytes,
    cls: type[T],
    *,
    strict: bool = False,
    plugin_fields: Mapping[str, RequestField] = NO_FIELDS,
) -> Parsed[T]:
    """Parse a body as `cls`. `strict` rejects unknown fields instead of listing them. Raises
    RequestError."""
    check_size(body)
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RequestError(
            f"the body is not valid JSON: {error}", "Send one JSON object."
        ) from error
    if not isinstance(raw, dict):
        raise RequestError(f"the body is {_kind(raw)}", "Send one JSON object.")
    check_shape(body, raw)
    return read(raw, cls, strict=strict, plugin_fields=plugin_fields)


def read(
    raw: dict[str, Any],
    cls: type[T],
    *,
    strict: bool = False,
    plugin_fields: Mapping[str, RequestField] = NO_FIELDS,
) -> Parsed[T]:
    """Read a decoded JSON object as `cls`, as `decode` does."""
    raw = applied(raw, cls, plugin_fields)
    ignored = _judge(raw, cls, strict)
    try:
        value = _CONVERTER.structure(raw, cls)
    except RequestError:
        raise
    except Exception as error:
        raise _refusal(error) from error
    return Parsed(value, (*ignored, *_unknown_in_messages(raw, cls, strict)))


class CattrsDTO(AbstractDTO[T], Generic[T]):
    """Makes Litestar read bodies with `decode`: a handler's data is a `Parsed`, with the body's
    OpenAPI schema."""

    config = DTOConfig()

    def decode_bytes(self, value: bytes) -> Any:
        connection = self.asgi_connection
        state = connection.app.state
        parsed = decode(
            value,
            self.model_type,
            strict=state.strict_params,
            plugin_fields=state.models.request_fields,
        )
        connection.state.request_id = getattr(parsed.body, "request_id", None)
        return parsed

    def data_to_encodable_type(self, data: Any) -> Any:
        return data

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Any:
        return iter(())

    @classmethod
    def detect_nested_field(cls, field_definition: Any) -> bool:
        return False

    @classmethod
    def create_for_field_definition(
        cls, field_definition: Any, handler_id: str, backend_cls: Any = None
    ) -> None:
        return None

    @classmethod
    def create_openapi_schema(
        cls, field_definition: Any, handler_id: str, schema_creator: Any
    ) -> Any:
        return schema_creator.for_field_definition(FieldDefinition.from_annotation(cls.model_type))


def post_body(body: type[Any], *paths: str, **options: Any) -> post:
    """Return the decorator of the handler that is sent such a body: at its class's endpoint, or at
    these paths. `options` are Litestar's."""
    dto: Any = CattrsDTO
    return post(
        list(paths) or body.path,
        status_code=200,
        dto=dto[body],
        return_dto=None,
        **{"responses": ERROR_RESPONSES, **options},
    )


def _judge(raw: dict[str, Any], cls: type[Any], strict: bool) -> list[str]:
    """Reject unsupported fields; return the ignored ones."""
    ignored, known = [], fields_dict(cls)
    rows = {row.name: row for row in cls.rows}
    for name, value in raw.items():
        if name in known:
            continue
        row = rows.get(name)
        if row is None:
            if strict:
                raise RequestError(
                    f"unknown field {shorten(name, 80)!r}",
                    "Leave it out, or run the server without --strict-params.",
                    param=shorten(name, 80),
                    code="unknown_parameter",
                )
            ignored.append(shorten(name, 80))
        elif value is None or _harmless(value, row):
            continue
        elif row.verdict == "refused":
            raise unsupported(name, row.note)
        else:
            ignored.append(name)
    return ignored[:100]


def _harmless(value: Any, row: Field) -> bool:
    # bool is an int in Python but not in JSON
    return any(value == h and isinstance(value, bool) == isinstance(h, bool) for h in row.harmless)


def _unknown_in_messages(raw: dict[str, Any], cls: type[Any], strict: bool) -> list[str]:
    if "messages" not in fields_dict(cls):
        return []
    known = {*fields_dict(Message), *getattr(cls, "message_fields", ())}
    unknown = {
        k: None
        for m in raw.get("messages") or ()
        for k, v in m.items()
        if k not in known and v is not None
    }
    names = [f"messages[].{shorten(name, 80)}" for name in unknown]
    if strict and names:
        raise RequestError(
            f"unknown field {names[0]!r}", "Leave it out.", param=names[0], code="unknown_parameter"
        )
    return names[:20]


def _refusal(error: Exception) -> RequestError:
    problems = list(_problems(error, "$"))
    path = problems[0][0].removeprefix("$").removeprefix(".")
    shown = "; ".join(
        f"{where.removeprefix('$.')}: {text}" if where != "$" else text
        for where, text in problems[:_MAX_PROBLEMS]
    )
    more = len(problems) - _MAX_PROBLEMS
    tail = f"; and {more} more" if more > 0 else ""
    return RequestError(shown + tail, param=path or None)


def _problems(error: BaseException, path: str) -> Iterable[tuple[str, str]]:
    """Yield (path, message) of each error. cattrs keeps the path in the notes of grouped
    exceptions."""
    if isinstance(error, ExceptionGroup):
        for each in error.exceptions:
            note: Any = next(
                (n for n in getattr(each, "__notes__", ()) if hasattr(n, "type")), None
            )
            where = path
            if note is not None:
                where = (
                    f"{path}[{note.index}]"
                    if isinstance(note, IterableValidationNote)
                    else f"{path}.{note.name}"
                )
            yield from _problems(each, where)
    elif isinstance(error, KeyError):
        yield path, "required field missing"
    else:
        yield path, shorten(str(error), 200)


def _kind(value: Any) -> str:
    names = {
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")


def _expect(what: str, accepts: Callable[[Any], bool]) -> Callable[[Any, Any], Any]:
    def hook(value: Any, _: Any) -> Any:
        if not accepts(value):
            raise ValueError(f"must be {what}, not {_kind(value)}")
        return value

    return hook


def _whole(value: Any, _: Any) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)  # JSON has one number type: 16.0 is 16
    if type(value) is not int:
        raise ValueError(
            f"must be a whole number, not {_kind(value) if type(value) is not float else value}"
        )
    if abs(value) > _MAX_INT:
        raise ValueError("is too large")
    return value


def _number(value: Any, _: Any) -> float:
    if type(value) is int and abs(value) > _MAX_INT:
        raise ValueError("is too large")
    if type(value) not in (int, float):
        raise ValueError(f"must be a number, not {_kind(value)}")
    return float(value)


def _list_of(item: Any) -> Callable[[Any, Any], list[Any]]:
    """Structure a list, stopping at the first bad item: a body with a million errors must not
    become a million exceptions."""

    def hook(value: Any, _: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError(f"must be a list, not {_kind(value)}")
        if item is str and set(map(type, value)) <= {str}:
            return value
        if (
            item is int
            and set(map(type, value)) <= {int}
            and max(map(abs, value), default=0) <= _MAX_INT
        ):
            return value
        done = []
        for i, each in enumerate(value):
            try:
                done.append(_CONVERTER.structure(each, item))
            except Exception as error:
                error.__notes__ = [IterableValidationNote("", i, item)]
                raise IterableValidationError("bad item", [error], list) from error
        return done

    return hook


def _object_of(cls: type[Any]) -> Callable[[Any, Any], Any]:
    fill = cattrs.gen.make_dict_structure_fn(cls, _CONVERTER)

    def hook(value: Any, kind: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"must be an object, not {_kind(value)}")
        return fill(value, kind)

    return hook


def _one_or_many(value: Any, _: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return _CONVERTER.structure(value, list[str])


def _strings(value: Any, _: Any) -> Any:
    return value if isinstance(value, str) else _CONVERTER.structure(value, list[str])


def _content(value: Any, _: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"must be a string, a list of parts or null, not {_kind(value)}")
    return _CONVERTER.structure(value, list[dict[str, Any]])


def _prompt(value: Any, _: Any) -> Any:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(
            "must be a string, a list of strings, token ids or a list of those, and not empty"
        )
    first = value[0]
    kind = (
        list[str]
        if isinstance(first, str)
        else list[list[int]]
        if isinstance(first, list)
        else list[int]
    )
    return _CONVERTER.structure(value, kind)


def _flag(value: Any, _: Any) -> Any:
    if value is not None and not isinstance(value, str | bool):
        raise ValueError(f"must be true, false or a string, not {_kind(value)}")
    return value


def _document(value: Any, _: Any) -> Any:
    if not isinstance(value, str | dict):
        raise ValueError(f"must be a string or an object, not {_kind(value)}")
    return value


def _choice(value: Any, _: Any) -> Any:
    if value is not None and not isinstance(value, str | dict):
        raise ValueError(f"must be a string or an object, not {_kind(value)}")
    return value


def _biases(value: Any, _: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, not {_kind(value)}")
    return {key: _number(bias, float) for key, bias in value.items()}


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=True)
    converter.register_structure_hook(str, _expect("a string", lambda v: isinstance(v, str)))
    converter.register_structure_hook(bool, _expect("true or false", lambda v: isinstance(v, bool)))
    converter.register_structure_hook(int, _whole)
    converter.register_structure_hook(float, _number)
    for kind, hook in (
        (dict[str, Any], _expect("an object", lambda v: isinstance(v, dict))),
        (dict[str, float], _biases),
        (list[int], _list_of(int)),
        (list[str], _list_of(str)),
        (list[list[int]], _list_of(list[int])),
        (list[dict[str, Any]], _list_of(dict[str, Any])),
        (list[Message], _list_of(Message)),
        (str | dict[str, Any], _document),
        (list[str | dict[str, Any]], _list_of(str | dict[str, Any])),
        (str | list[str], _strings),
        (bool | str | None, _flag),
        (str | list[str] | None, _one_or_many),
        (str | list[dict[str, Any]] | None, _content),
        (str | dict[str, Any] | None, _choice),
        (
            bool | dict[str, Any] | None,
            _expect("true, false or an object", lambda v: v is None or isinstance(v, bool | dict)),
        ),
        (str | list[str] | list[int] | list[list[int]], _prompt),
    ):
        converter.register_structure_hook_func(partial(operator.eq, kind), hook)
    return converter


_CONVERTER = _converter()
for _cls in (Message, StreamOptions):
    _CONVERTER.register_structure_hook(_cls, _object_of(_cls))
