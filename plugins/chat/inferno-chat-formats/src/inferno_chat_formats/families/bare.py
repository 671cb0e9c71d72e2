"""Families whose calls have no marker, templates without tools, and reasoning alone."""

from attrs import evolve

from inferno_chat_formats.families.json_calls import JSON_BLOCK
from inferno_chat_formats.families.thinking import MISTRAL, THINK
from inferno_chat_formats.spec import Calls, Keys, Slot, Spec

_LLAMA = Keys(arguments="parameters")
_WRITTEN = (
    # A grammar of several calls would hold models that were not trained to end them.
    evolve(JSON_BLOCK, repeated=False),
    Calls(call=("<tool_call>", Slot.OBJECTS, "</tool_call>"), repeated=False),
    Calls(call=(Slot.OBJECT,), bare=True),
)
"""The form that models are told to write, and forms that they write instead."""
_OBJECT = Calls(call=(Slot.OBJECT,), keys=_LLAMA, between=";", bare=True)

_PYTHON = ("<|python_start|>", "<|python_end|>")

FAMILIES = (
    Spec(
        name="llama4-json",
        shows=("<|header_start|>", '{"name": function name, "parameters":'),
        priority=1,
        calls=(evolve(_OBJECT, between=""), Calls(call=(Slot.PYTHON,), bare=True, repeated=False)),
        dropped=_PYTHON,
        models="Llama 4",
    ),
    Spec(
        name="llama4-pythonic",
        shows=("<|header_start|>", "[func_name1(params_name1=params_value1"),
        calls=(Calls(call=(Slot.PYTHON,), bare=True, repeated=False), evolve(_OBJECT, between="")),
        dropped=_PYTHON,
        models="Llama 4 with Python calls",
    ),
    Spec(
        name="llama3-json",
        shows=('{"name": function name, "parameters":',),
        calls=(
            _OBJECT,
            Calls(call=("<|python_tag|>", Slot.OBJECT), keys=_LLAMA, between=";"),
            Calls(call=("<|python_tag|>", Slot.PYTHON), repeated=False),
        ),
        models="Llama 3.1, 3.2 and 3.3",
    ),
    Spec(
        name="lfm2",
        shows=("List of tools: ",),
        reasoning=THINK,
        calls=(
            Calls(call=("<|tool_call_start|>", Slot.PYTHON, "<|tool_call_end|>"), repeated=False),
        ),
        models="LFM2",
    ),
    Spec(
        name="olmo",
        shows=("<function_calls>",),
        lacks=("DSML", "<invoke", "invoke name"),
        reasoning=THINK,
        calls=(
            Calls(call=("<function_calls>\n", Slot.PYTHON, "\n</function_calls>"), repeated=False),
        ),
        models="OLMo 3",
    ),
    Spec(
        name="pythonic",
        shows=("tools", "[func_name1(params_name1=params_value1"),
        priority=-1,
        calls=(Calls(call=(Slot.PYTHON,), bare=True, repeated=False),),
        models="Llama 3.2 with Python calls",
    ),
    Spec(
        name="json",
        shows=("tools",),
        priority=-10,
        reasoning=(*THINK, *MISTRAL),
        calls=(
            Calls(call=(Slot.OBJECT,), between=";", bare=True),
            Calls(call=(Slot.OBJECTS,), bare=True, repeated=False),
        ),
        models="templates with tools of no known format",
    ),
    Spec(
        name="generic",
        shows=(),
        lacks=("tools",),
        priority=-15,
        reasoning=(*THINK, *MISTRAL),
        calls=_WRITTEN,
        writes_tools=True,
        models="templates without tools: SmolLM2, Gemma 2, Phi-3",
    ),
    Spec(
        name="think",
        shows=("</think>",),
        priority=-20,
        reasoning=THINK,
        models="reasoning without tools",
    ),
)
