"""A sandbox for chat templates that bounds what they use. A template comes with a checkpoint, and
is a program: it may loop, or ask for gigabytes by one multiplication.

Loops and calls of macros tick, and so is everything counted that a template makes: strings and
lists by their length, what is written, and before it is made what may be far longer than its parts.
All of this is added to the template's syntax tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from time import thread_time
from typing import Any, NoReturn

import jinja2
from attrs import define, field
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

SECONDS = 2.0
"""Processor time for a prompt. A long conversation takes milliseconds."""
MOST_MADE = 2**29
FIRST_MADE = 2**26
MADE_PER_CHARACTER = 200
"""How many characters and items a template may make for its messages: templates that build a prompt
piece by piece copy it once for every message."""
MOST_SOURCE = 500_000
"""Characters of a template. Real ones have up to 30 000."""
_EVERY = 8
"""Ticks after which the clock is read."""
_MOST_WIDTH = 1000
_MOST_WRAPPED = 10_000
"""Characters: the time to wrap a word grows with the square of its length."""
_BUDGET = "0 budget"
"""The budget's name among the variables, which no template can write."""
_PERCENT = r"%(\([^)]{0,99}\))?[-+ #0-9.]*"
_WIDE = re.compile(rf"(\{{[^{{}}]*|{_PERCENT})\d{{5}}|{_PERCENT}\*|:[^{{}}]*\{{")
"""In a format: a width of five digits, or one that an argument gives."""
_ITEM = 16
"""What an item of a list or dict counts as, in characters."""


class TemplateLimitError(jinja2.TemplateRuntimeError):
    """A template has used more than it may."""


class TemplateTimeError(TemplateLimitError):
    """A template has taken longer than it may."""


def _exceeded(what: str) -> NoReturn:
    raise TemplateLimitError(f"the chat template {what}")


@define(eq=False)
class Budget:
    """What a template may still use."""

    made: int = FIRST_MADE
    """Characters and items."""
    seconds: float = SECONDS
    clock: Callable[[], float] = thread_time
    _end: float = field(init=False)
    _ticks: int = 0

    def __attrs_post_init__(self) -> None:
        self._end = self.clock() + self.seconds

    @classmethod
    def of(cls, seconds: float, *values: Any) -> Budget:
        """Return that for a conversation."""
        size = sum(_weight(value, MOST_MADE) for value in values)
        return cls(min(MOST_MADE, FIRST_MADE + MADE_PER_CHARACTER * size), seconds)

    def tick(self, made: int = 0) -> None:
        """Count what is made. Raises TemplateLimitError."""
        self.made -= made
        if self.made < 0:
            _exceeded("makes too much text")
        self._ticks += 1
        if self._ticks % _EVERY == 0 and self.clock() > self._end:
            raise TemplateTimeError(f"the chat template takes more than {SECONDS:g} s")

    def check(self, size: int) -> None:
        """Raise TemplateLimitError if so much cannot be made."""
        if size > self.made:
            _exceeded("makes too much text")


def _weight(value: Any, most: int) -> int:
    """Return how long a value is in text, about, or more than `most`: a list may have the same list
    many times."""
    weight, stack = 0, [value]
    while stack and weight <= most:
        each = stack.pop()
        weight += _ITEM
        if isinstance(each, str):
            weight += len(each)
        elif isinstance(each, list | tuple):
            stack += each
        elif isinstance(each, dict):
            stack += [*each.keys(), *each.values()]
    return weight


def _budget(context: Context) -> Budget:
    budget: Budget = context.parent[_BUDGET]
    return budget


@pass_context
def _tick(context: Context, value: Any, made: int = 0) -> Any:
    _budget(context).tick(made)
    return value


@pass_context
def _made(context: Context, value: Any) -> Any:
    """Count a value that was made."""
    _budget(context).tick(len(value) if isinstance(value, str | list | tuple | dict) else 0)
    return value


@pass_context
def _text(context: Context, value: Any) -> Any:
    """Count a value that becomes text."""
    budget = _budget(context)
    size = len(value) if isinstance(value, str) else _weight(value, budget.made)
    budget.tick(size)
    return value


@pass_context
def _concatenated(context: Context, parts: Sequence[Any]) -> str:
    for part in parts:
        _text(context, part)
    return "".join(map(str, parts))


class _Counted(NodeTransformer):
    """Adds the counting to a syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_filter(nodes.Const(True), "0 tick"), node.test)
        node.body.insert(0, _ticking(node.body))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _ticking(node.body))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        call = node.call
        self.generic_visit(node)
        node.call = call  # visited, and still a call, which the block must be
        node.body.insert(0, _ticking(node.body))
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [
            each if isinstance(each, nodes.TemplateData) else _filter(each, "0 text")
            for each in node.nodes
        ]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "0 concatenated")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "0 made") if isinstance(node.arg, nodes.Slice) else node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "0 made")

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        # Without a node it filters a block's text, which is counted already.
        return node if node.node is None else _filter(node, "0 made")


def _filter(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [*args], [], None, None, lineno=node.lineno)


def _ticking(body: Sequence[nodes.Node]) -> nodes.Node:
    """Return a statement that counts one execution of these, and the text written in them."""
    size = sum(len(data.data) for each in body for data in (*each.find_all(nodes.TemplateData),))
    return nodes.ExprStmt(_filter(nodes.Const(True), "0 tick", nodes.Const(size)))


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Renders with a `Budget`."""

    intercepted_binops = frozenset(["*", "**", "%", "+"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.globals["lipsum"]  # text without a limit, that no prompt has
        for name, function in self.filters.items():
            self.filters[name] = guarded(name, function)
        self.filters.update(
            {
                "0 tick": _tick,
                "0 made": _made,
                "0 text": _text,
                "0 concatenated": _concatenated,
            }
        )

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MOST_SOURCE:
            raise jinja2.TemplateSyntaxError(f"it has {len(source)} characters", 1)
        tree: nodes.Template = _Counted().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget(context)
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                budget.check(left.bit_length() * abs(right) * 1000)
        elif operator == "*":
            budget.check(_product(left, right))
        elif operator == "%" and isinstance(left, str):
            _check_format(context, left, right)
        elif operator == "+":
            budget.check(sum(len(x) for x in (left, right) if isinstance(x, str | list | tuple)))
        return _made(context, super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _budget(__context).tick()
        name = getattr(__obj, "__name__", "")
        if name in ("format", "format_map"):  # `wrap_str_format` has checked it
            _text(__context, [*args, *kwargs.values()])
        elif isinstance(text := getattr(__obj, "__self__", None), str):
            _check_method(__context, text, name, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE.search(getattr(value, "__self__", "")):
            _exceeded("formats with a width that is too large")
        return wrapped


def line_of(error: BaseException) -> int | None:
    """Return the line of a template in which an error was raised."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def rendered_within(template: jinja2.Template, budget: Budget, variables: Mapping[str, Any]) -> str:
    """Render a template of a `BoundedEnvironment`. Raises what it raises."""
    return template.render({**variables, _BUDGET: budget})


def _product(left: Any, right: Any) -> int:
    """Return at least the size of a product, in characters, items or thousandths of bits."""
    for number, other in ((left, right), (right, left)):
        if isinstance(number, int) and isinstance(other, str | list | tuple):
            return number * len(other)
    if isinstance(left, int) and isinstance(right, int):
        return (left.bit_length() + right.bit_length()) * 1000
    return 0


def _check_format(context: Context, text: str, values: Any) -> None:
    """Count what a format writes, and refuse widths."""
    if _WIDE.search(text):
        _exceeded("formats with a width that is too large")
    _text(context, values)


def _check_method(
    context: Context, text: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Check a call of a string's method that may make far more than it is given."""
    budget, given = _budget(context), [*args, *kwargs.values()]
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        widths = [each for each in given if isinstance(each, int)]
        budget.check((text.count("\t") if name == "expandtabs" else 1) * max(widths, default=0))
    elif name == "replace" and len(given) >= 2 and all(isinstance(x, str) for x in given[:2]):
        budget.check(text.count(given[0]) * len(given[1]))
    elif name == "join" and args:
        budget.check(len(text) * len(args[0]) if hasattr(args[0], "__len__") else 0)
        _text(context, args[0] if isinstance(args[0], list | tuple) else "")
    elif name == "translate":
        _exceeded("translates characters")


_STRUCTURAL = {
    *("attr", "count", "d", "default", "dictsort", "first", "groupby", "items", "last", "length"),
    *("list", "map", "max", "min", "random", "reject", "rejectattr", "reverse", "select"),
    *("selectattr", "sort", "unique"),
}
"""Filters that write no text of what they are given."""
_WIDTHS = ("batch", "center", "indent", "slice", "tojson", "wordwrap")


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that counts what it is given, unless it only looks at it."""
    if name in _STRUCTURAL:
        return function
    passed = getattr(function, "jinja_pass_arg", None)
    kind = passed.name if passed is not None else ""

    @pass_context
    def checked(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if name in ("join", "sum", "batch", "slice") and not isinstance(value, str | Mapping):
            value = [*value] if hasattr(value, "__iter__") else value
        _check_filter(context, name, value, given)
        if not kind:
            return function(value, *args, **kwargs)
        known = {"context": context, "eval_context": context.eval_ctx}
        return function(known.get(kind, context.environment), value, *args, **kwargs)

    return checked


def _check_filter(context: Context, name: str, value: Any, given: Sequence[Any]) -> None:
    budget = _budget(context)
    _text(context, value)
    for each in given:
        _text(context, each)
    numbers = [each for each in given if isinstance(each, int)]
    longest = max((len(each) for each in given if isinstance(each, str)), default=0)
    if name in _WIDTHS and max(numbers, default=0) > _MOST_WIDTH:
        _exceeded(f"uses the filter {name} with {max(numbers)}")
    if name == "replace":
        budget.check(_parts(value, given) * longest)
    elif name == "wordwrap" and isinstance(value, str) and len(value) > _MOST_WRAPPED:
        _exceeded("wraps a text that is too long")
    elif name in ("join", "wordwrap"):
        budget.check((len(value) if isinstance(value, str | list | tuple | dict) else 0) * longest)
    elif name in ("indent", "tojson"):
        lines = value.count("\n") if isinstance(value, str) else _weight(value, budget.made)
        budget.check(lines * max([longest, *numbers]))
    elif name == "sum" and any(isinstance(each, list) for each in given):
        budget.check(len(value) * _weight(value, budget.made))
    elif name == "format":
        _check_format(context, str(value), given)


def _parts(value: Any, given: Sequence[Any]) -> int:
    """Return how often a replacement's first argument is in the value."""
    return str(value).count(str(given[0])) if given else 0
