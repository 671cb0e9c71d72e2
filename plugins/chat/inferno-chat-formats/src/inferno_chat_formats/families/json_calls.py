"""Families whose call is one JSON object, or an array of them, between markers."""

from inferno_chat_formats.families.thinking import COHERE, THINK
from inferno_chat_formats.spec import Calls, Keys, Slot, Spec

JSON_BLOCK = Calls(
    call=("<tool_call>\n", Slot.OBJECT, "\n</tool_call>"),
    between="\n",
)
_COHERE = Calls(
    call=("<|START_ACTION|>", Slot.OBJECTS, "<|END_ACTION|>"),
    keys=Keys(name="tool_name", arguments="parameters", id="tool_call_id"),
    repeated=False,
)

FAMILIES = (
    Spec(
        name="hermes",
        shows=("<tool_call>",),
        lacks=("<arg_key>", "<function=", "<invoke name=", "<tool_call:"),
        reasoning=THINK,
        calls=(JSON_BLOCK,),
        models="Qwen2.5, Qwen3, QwQ, Hermes 2 and 3, Granite 4, MiMo, SmolLM3, Bielik",
    ),
    Spec(
        name="ernie",
        shows=("<tool_call>", "<response>"),
        lacks=("<|tool_call|>", "<arg_key>", "<function=", "<invoke name="),
        priority=1,
        reasoning=THINK,
        calls=(JSON_BLOCK,),
        answer=("<response>", "</response>"),
        models="ERNIE 4.5 Thinking",
    ),
    Spec(
        name="command-r7b",
        shows=("<|START_ACTION|>",),
        reasoning=COHERE,
        calls=(_COHERE,),
        dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        models="Command R7B, Command A",
    ),
    Spec(
        name="command-r",
        shows=("Action:", "directly-answer"),
        calls=(
            Calls(
                call=("Action:\n```json\n", Slot.OBJECTS, "\n```"),
                keys=Keys(name="tool_name", arguments="parameters"),
                repeated=False,
            ),
        ),
        models="Command R, Command R+",
    ),
    Spec(
        name="mistral",
        shows=("[TOOL_CALLS]",),
        lacks=("[ARGS]",),
        calls=(
            Calls(call=("[TOOL_CALLS]", Slot.OBJECTS), keys=Keys(id="id"), repeated=False),
            Calls(call=("[TOOL_CALLS]", Slot.NAME, "[ARGS]", Slot.ARGUMENTS)),
        ),
        ids="alphanumeric",
        models="Mistral 7B v0.3, Mistral Nemo, Mixtral",
    ),
    Spec(
        name="phi4",
        shows=("<|tool_call|>", "<|/tool_call|>"),
        calls=(Calls(call=("<|tool_call|>", Slot.OBJECTS, "<|/tool_call|>"), repeated=False),),
        models="Phi-4-mini",
    ),
    Spec(
        name="granite",
        shows=("<|tool_call|>", "<|start_of_role|>"),
        lacks=("<|/tool_call|>", "<tool_call>"),
        reasoning=(("<think>", "</think>"),),
        calls=(Calls(call=("<|tool_call|>", Slot.OBJECTS), repeated=False),),
        dropped=("<response>", "</response>"),
        models="Granite 3",
    ),
    Spec(
        name="minimax-m1",
        shows=("<tool_calls>", "</tool_calls>"),
        lacks=("<tool_calls>[", "<tool_calls>' +"),
        reasoning=THINK,
        calls=(
            Calls(
                opening="<tool_calls>\n",
                call=(Slot.OBJECT,),
                between="\n",
                closing="\n</tool_calls>",
            ),
        ),
        models="MiniMax-M1",
    ),
    Spec(
        name="apriel",
        shows=("<tool_calls>[", "]</tool_calls>"),
        priority=1,
        reasoning=(
            ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
            ("<thinking>", "</thinking>"),
        ),
        calls=(
            Calls(
                call=("<tool_calls>", Slot.OBJECTS, "</tool_calls>"),
                keys=Keys(id="id"),
                repeated=False,
            ),
        ),
        models="Apriel",
    ),
    Spec(
        name="hunyuan-a13b",
        shows=("<|extra_0|>", "<tool_calls>"),
        priority=2,
        # Its template need not show them.
        reasoning=(("<think>\n", "\n</think>\n"),),
        always_reasons=True,
        calls=(Calls(call=("<tool_calls>", Slot.OBJECTS, "</tool_calls>"), repeated=False),),
        answer=("<answer>", "</answer>"),
        salutation="助手：",
        grammar_lead="<answer>\n",
        models="Hunyuan-A13B",
    ),
    Spec(
        name="nemotron",
        shows=("<TOOLCALL>",),
        reasoning=THINK,
        calls=(Calls(call=("<TOOLCALL>", Slot.OBJECTS, "</TOOLCALL>"), repeated=False),),
        models="Nemotron Nano 2",
    ),
    Spec(
        name="apertus",
        shows=("<|tools_prefix|>", "<|tools_suffix|>"),
        reasoning=(("<|inner_prefix|>", "<|inner_suffix|>"),),
        calls=(
            Calls(
                call=("<|tools_prefix|>", Slot.OBJECTS, "<|tools_suffix|>"),
                keys=Keys(single=True),
                repeated=False,
            ),
        ),
        models="Apertus",
    ),
    Spec(
        name="gigachat",
        shows=("<|function_call|>",),
        calls=(Calls(call=("<|function_call|>", Slot.OBJECT), repeated=False),),
        models="GigaChat 3.1",
    ),
    Spec(
        name="gigachat3",
        shows=("function call", "<|role_sep|>", "<|message_sep|>"),
        lacks=("<|function_call|>",),
        calls=(
            Calls(
                call=("<|message_sep|>\n\nfunction call<|role_sep|>\n", Slot.OBJECT),
                repeated=False,
            ),
        ),
        models="GigaChat 3",
    ),
    Spec(
        name="firefunction",
        shows=("functools[",),
        calls=(Calls(call=("functools", Slot.OBJECTS), repeated=False),),
        models="FireFunction v2",
    ),
)
