"""The families of chat formats, by how they write calls."""

from inferno_chat_formats.families import bare, channels, json_calls, named, parameters
from inferno_chat_formats.spec import Spec

FAMILIES: tuple[Spec, ...] = (
    *json_calls.FAMILIES,
    *named.FAMILIES,
    *parameters.FAMILIES,
    *channels.FAMILIES,
    *bare.FAMILIES,
)
