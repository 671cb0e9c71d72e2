"""Families that write each argument as text, between its own markers."""

from inferno_chat_formats.families.thinking import THINK
from inferno_chat_formats.spec import Calls, Part, Slot, Spec


def _functions(
    opening: str, closing: str, *, lines: bool = True, between: str = "\n"
) -> tuple[Calls, ...]:
    """`<function=NAME>` with `<parameter=KEY>`, in markers of the family."""
    line = "\n" if lines else ""
    parameter: tuple[Part, ...] = (
        "<parameter=",
        Slot.KEY,
        f">{line}",
        Slot.VALUE,
        f"{line}</parameter>\n",
    )
    body: tuple[Part, ...] = ("<function=", Slot.NAME, ">\n", Slot.PARAMETERS, "</function>")
    wrapped = (f"{opening}\n<function=", *body[1:-1], f"</function>\n{closing}")
    return (
        Calls(call=wrapped, parameter=parameter, between=between),
        Calls(call=body, parameter=parameter, between=between),
    )


def _arguments(line: str, *, opening: str = "", closing: str = "", mark: str = "") -> Calls:
    """`NAME` with `<arg_key>` and `<arg_value>`."""
    name_end = f"<tool_sep{mark}>{line}" if mark else line
    return Calls(
        opening=opening,
        call=(
            f"<tool_call{mark}>",
            Slot.NAME,
            name_end,
            Slot.PARAMETERS,
            f"</tool_call{mark}>",
        ),
        parameter=(
            f"<arg_key{mark}>",
            Slot.KEY,
            f"</arg_key{mark}>{line}<arg_value{mark}>",
            Slot.VALUE,
            f"</arg_value{mark}>{line}",
        ),
        between=line,
        closing=closing,
    )


def invocations(
    opening: str, closing: str, prefix: str = "", *, typed: bool = False, between: str = "\n"
) -> Calls:
    """`<invoke name="NAME">` with `<parameter name="KEY">`."""
    key_end: tuple[Part, ...] = ('" string="', Slot.TYPE, '">') if typed else ('">',)
    return Calls(
        opening=opening,
        call=(
            f'<{prefix}invoke name="',
            Slot.NAME,
            '">\n',
            Slot.PARAMETERS,
            f"</{prefix}invoke>",
        ),
        parameter=(
            f'<{prefix}parameter name="',
            Slot.KEY,
            *key_end,
            Slot.VALUE,
            f"</{prefix}parameter>\n",
        ),
        between=between,
        closing=closing,
    )


_MINIMAX = "]<]minimax[>["
"""A token before each tag."""
_DSML = "｜DSML｜"

FAMILIES = (
    Spec(
        name="qwen3-coder",
        shows=("<tool_call>", "<function=", "<parameter="),
        reasoning=THINK,
        calls=_functions("<tool_call>", "</tool_call>"),
        models="Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5",
    ),
    Spec(
        name="seed-oss",
        shows=("<seed:tool_call>",),
        priority=1,
        reasoning=(("<seed:think>", "</seed:think>"),),
        calls=_functions("<seed:tool_call>", "</seed:tool_call>", lines=False),
        models="Seed-OSS",
    ),
    Spec(
        name="glm4",
        shows=("<arg_key>", "<arg_value>"),
        reasoning=THINK,
        calls=(_arguments("\n"),),
        models="GLM 4.5, 4.6 and 4.7, Ling 3",
    ),
    Spec(
        name="hunyuan",
        shows=(":opensource", "<tool_calls{}>"),
        reasoning=(("<think:opensource>", "</think:opensource>"),),
        calls=(
            _arguments(
                "\n",
                opening="<tool_calls:opensource>\n",
                closing="\n</tool_calls:opensource>",
                mark=":opensource",
            ),
        ),
        models="Hunyuan 3",
    ),
    Spec(
        name="minimax-m2",
        shows=("<minimax:tool_call>", "<invoke name="),
        reasoning=THINK,
        calls=(invocations("<minimax:tool_call>\n", "\n</minimax:tool_call>"),),
        models="MiniMax-M2",
    ),
    Spec(
        name="minimax-m3",
        shows=(_MINIMAX, "<mm:think>"),
        reasoning=(("<mm:think>", "</mm:think>"),),
        calls=(
            Calls(
                opening=f"{_MINIMAX}<tool_call>\n",
                call=(
                    f'{_MINIMAX}<invoke name="',
                    Slot.NAME,
                    '">',
                    Slot.ELEMENTS,
                    f"{_MINIMAX}</invoke>",
                ),
                parameter=(_MINIMAX,),
                between="\n",
                closing=f"\n{_MINIMAX}</tool_call>",
            ),
        ),
        dropped=("</mm:think>",),
        models="MiniMax-M3",
    ),
    Spec(
        name="deepseek-v3.2",
        shows=("DSML", "function_calls"),
        reasoning=THINK,
        calls=(
            invocations(
                f"<{_DSML}function_calls>\n", f"\n</{_DSML}function_calls>", _DSML, typed=True
            ),
        ),
        models="DeepSeek V3.2",
    ),
    Spec(
        name="deepseek-v4",
        shows=("DSML", "tool_calls"),
        lacks=("function_calls",),
        reasoning=THINK,
        calls=(
            invocations(f"<{_DSML}tool_calls>\n", f"\n</{_DSML}tool_calls>", _DSML, typed=True),
        ),
        models="DeepSeek V4",
    ),
    Spec(
        name="minicpm5",
        shows=('<function name="', '<param name="'),
        reasoning=THINK,
        calls=(
            Calls(
                call=('<function name="', Slot.NAME, '">', Slot.PARAMETERS, "</function>"),
                parameter=('<param name="', Slot.KEY, '">', Slot.VALUE, "</param>"),
                between="\n",
            ),
        ),
        models="MiniCPM5",
    ),
    Spec(
        name="kimi-k3",
        shows=("<|open|>", "<|close|>", "<|end_of_msg|>"),
        reasoning=(("<|open|>think<|sep|>", "<|close|>think<|sep|>"),),
        always_reasons=True,
        calls=(
            Calls(
                opening="<|open|>tools<|sep|>",
                call=(
                    '<|open|>call tool="',
                    Slot.NAME,
                    '" index="',
                    Slot.ID,
                    '"<|sep|>',
                    Slot.PARAMETERS,
                    "<|close|>call<|sep|>",
                ),
                parameter=(
                    '<|open|>argument key="',
                    Slot.KEY,
                    '" type="',
                    Slot.TYPE,
                    '"<|sep|>',
                    Slot.VALUE,
                    "<|close|>argument<|sep|>",
                ),
                closing="<|close|>tools<|sep|>",
            ),
        ),
        dropped=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
        models="Kimi K3",
    ),
)
