"""Harmony: messages with channels and recipients."""

from inferno_chat_formats.spec import Calls, Slot, Spec

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
)
