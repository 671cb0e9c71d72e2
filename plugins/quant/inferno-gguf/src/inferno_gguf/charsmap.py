"""Checks SentencePiece's compiled normalization rules: the library that applies them does not, and
panics on out-of-bounds offsets.

A blob: the size of a trie in bytes, the trie, the replacements, each ended by a zero byte. The trie
is a double array of 32-bit units (https://github.com/s-yata/darts-clone): a unit's children are at
its position ^ its offset ^ the child's byte, and the index of its replacement, if any, is at its
position ^ its offset.
"""

from __future__ import annotations

import struct

_LEAF, _IS_VALUE = 1 << 8, 1 << 31


def problem(blob: bytes) -> str | None:
    """Describe what is wrong with the rules, or None. They are little-endian in any file."""
    if len(blob) < 4:
        return "it is truncated"
    [size] = struct.unpack_from("<I", blob)
    if size % 4 or not 4 <= size <= len(blob) - 4:
        return f"its trie of {size} bytes does not fit in it"
    units = struct.unpack_from(f"<{size // 4}I", blob, 4)
    replacements = blob[4 + size :]
    try:
        replacements.decode()
    except UnicodeDecodeError:
        return "its replacements are not UTF-8"
    for position, unit in enumerate(units):
        if unit & _IS_VALUE:
            continue
        below = position ^ (unit >> 10) << ((unit & 1 << 9) >> 6)
        if below | 255 >= len(units):
            return f"unit {position} of its trie points out of bounds"
        if unit & _LEAF and not _begins_text(replacements, units[below] & ~_IS_VALUE):
            return f"unit {position} of its trie has no replacement"
    return None


def _begins_text(replacements: bytes, start: int) -> bool:
    return start < len(replacements) and replacements[start] & 0xC0 != 0x80
