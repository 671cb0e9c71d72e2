"""Messages with channels (Harmony), and with recipients."""

from inferno_chat_formats.families.parameters import invocations
from inferno_chat_formats.spec import Calls, Slot, Spec

_ATEM = invocations("<atem:function_calls>\n", "\n</atem:function_calls>", "atem:")

FAMILIES = (
    Spec(
        name="harmony",
        shows=("<|channel|>", "<|message|>"),
        parser="channels",
        reasoning=(("<|channel|>analysis<|message|>", "<|end|>"),),
        grammar_lead="<|start|>assistant",
        always_reasons=True,
        calls=(
            Calls(
                call=(
                    "<|channel|>commentary to=functions.",
                    Slot.NAME,
                    " <|constrain|>json<|message|>",
                    Slot.ARGUMENTS,
                ),
                repeated=False,
            ),
        ),
        models="gpt-oss",
    ),
    Spec(
        name="atem",
        shows=("<atem:function_calls>", "<|message|>", "to=self"),
        priority=1,
        parser="recipients",
        reasoning=((" to=self<|message|>", "<|eom|>"),),
        grammar_lead="<|start|>assistant",
        always_reasons=True,
        calls=(
            Calls(
                call=(
                    Slot.RECIPIENT,
                    f"<|message|>{_ATEM.opening}",
                    *_ATEM.call,
                    _ATEM.closing,
                ),
                parameter=_ATEM.parameter,
                between="<|eom|><|start|>assistant",
                bare=True,
            ),
        ),
        models="Muse Glimmer",
    ),
)
