"""Families that write the tool's name outside of the JSON arguments."""

from inferno_chat_formats.families.thinking import MISTRAL, THINK
from inferno_chat_formats.spec import Calls, Slot, Spec

_CALLS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
_WITH_TYPE = Calls(
    opening=_CALLS[0],
    call=(
        f"{_CALL[0]}function{_CALL[1]}",
        Slot.NAME,
        "\n```json\n",
        Slot.ARGUMENTS,
        f"\n```{_CALL[2]}",
    ),
    between="\n",
    closing=_CALLS[1],
)
_WITHOUT_TYPE = Calls(
    opening=_CALLS[0],
    call=(_CALL[0], Slot.NAME, _CALL[1], Slot.ARGUMENTS, _CALL[2]),
    closing=_CALLS[1],
)

FAMILIES = (
    Spec(
        name="deepseek-v3",
        shows=("<｜tool▁calls▁begin｜>", "```json"),
        reasoning=THINK,
        calls=(_WITH_TYPE, _WITHOUT_TYPE),
        models="DeepSeek V3, R1 and its distillations",
    ),
    Spec(
        name="deepseek-v3.1",
        shows=("<｜tool▁calls▁begin｜>",),
        lacks=("```json",),
        reasoning=THINK,
        calls=(_WITHOUT_TYPE, _WITH_TYPE),
        models="DeepSeek V3.1",
    ),
    Spec(
        name="kimi-k2",
        shows=("<|tool_calls_section_begin|>",),
        reasoning=THINK,
        calls=(
            Calls(
                opening="<|tool_calls_section_begin|>",
                call=(
                    "<|tool_call_begin|>",
                    Slot.NAMED_ID,
                    "<|tool_call_argument_begin|>",
                    Slot.ARGUMENTS,
                    "<|tool_call_end|>",
                ),
                closing="<|tool_calls_section_end|>",
            ),
        ),
        ids="named",
        call_ends_reasoning=True,
        models="Kimi K2",
    ),
    Spec(
        name="mistral-args",
        shows=("[TOOL_CALLS]", "[ARGS]"),
        lacks=("[CALL_ID]",),
        reasoning=MISTRAL,
        calls=(
            Calls(call=("[TOOL_CALLS]", Slot.NAME, "[ARGS]", Slot.ARGUMENTS)),
            Calls(call=("[TOOL_CALLS]", Slot.NAME, "[CALL_ID]", Slot.ID, "[ARGS]", Slot.ARGUMENTS)),
        ),
        ids="alphanumeric",
        models="Devstral, Magistral, Ministral 3",
    ),
    Spec(
        name="mistral-ids",
        shows=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        reasoning=MISTRAL,
        calls=(
            Calls(call=("[TOOL_CALLS]", Slot.NAME, "[CALL_ID]", Slot.ID, "[ARGS]", Slot.ARGUMENTS)),
            Calls(call=("[TOOL_CALLS]", Slot.NAME, "[ARGS]", Slot.ARGUMENTS)),
        ),
        ids="alphanumeric",
        models="Mistral Small 3.2",
    ),
    Spec(
        name="functionary-v3.1",
        shows=("<function=", "</function>"),
        lacks=("<parameter=", "<tool_call>"),
        calls=(Calls(call=("<function=", Slot.NAME, ">", Slot.ARGUMENTS, "</function>")),),
        models="Functionary v3.1, Llama 3.1 with custom tools",
    ),
    Spec(
        name="functionary-v3.2",
        shows=(">>>all",),
        calls=(Calls(call=(">>>", Slot.NAME, "\n", Slot.ARGUMENTS)),),
        dropped=(">>>all\n",),
        prompt_tail=">>>",
        models="Functionary v3.2",
    ),
    Spec(
        name="gemma4",
        shows=("<|tool_call>call:",),
        reasoning=(("<|channel>thought\n", "<channel|>"),),
        calls=(
            Calls(
                call=("<|tool_call>call:", Slot.NAME, Slot.GEMMA_ARGUMENTS, "<tool_call|>"),
            ),
        ),
        models="Gemma 4",
    ),
    Spec(
        name="solar-open",
        shows=("<|tool_call:begin|>", "<|tool_call:args|>"),
        reasoning=(("<|think|>", "<|end|><|begin|>assistant"),),
        always_reasons=True,
        calls=(
            Calls(
                opening="<|tool_calls|>",
                call=(
                    "<|tool_call:begin|>",
                    Slot.ID,
                    "<|tool_call:name|>",
                    Slot.NAME,
                    "<|tool_call:args|>",
                    Slot.ARGUMENTS,
                    "<|tool_call:end|>",
                ),
                closing="<|calls|>",
            ),
        ),
        dropped=("<|content|>",),
        ids="alphanumeric",
        models="Solar Open",
    ),
)
