"""The windows of a text that are scored: those of llama.cpp's `llama-perplexity`."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from inferno.errors import OptionError


@frozen
class Window:
    """Tokens that the model sees at once, from an empty cache."""

    token_ids: tuple[int, ...]
    first: int
    """Index of the first token whose successor is scored; the last but one is the last."""

    @property
    def targets(self) -> tuple[int, ...]:
        """The tokens that are scored: each is predicted from those before it in the window."""
        return self.token_ids[self.first + 1 :]


def windows_of(
    token_ids: Sequence[int],
    *,
    window: int = 512,
    stride: int | None = None,
    limit: int | None = None,
    bos: int | None = None,
) -> list[Window]:
    """Cut a text into windows.

    Without a stride, windows follow each other; the tokens of the second half but its first are
    scored, and `bos` replaces a window's first token. With a stride, a window has `window` + half
    the stride tokens, the next one begins `stride` tokens later, and the last `stride` tokens are
    scored, so that each token is scored once and `bos` replaces none. The rest that does not fill a
    window is left out. `limit` is the most windows. Raises OptionError if there is none.
    """
    if window < 4 or (stride is not None and not 1 <= stride <= window):
        raise OptionError(
            f"windows of {window} tokens"
            + ("" if stride is None else f" with a stride of {stride}"),
            "A window has at least 4 tokens, and a stride is between 1 and the window.",
        )
    length = window if stride is None else window + stride // 2
    first = window // 2 if stride is None else length - stride - 1
    if len(token_ids) < length:
        raise OptionError(
            f"the text has {len(token_ids)} tokens, and a window {length}",
            "Give a longer text, or a smaller --window.",
        )
    if stride is None:
        starts = range(0, len(token_ids) - length + 1, length)
    else:
        starts = range(0, max(1, len(token_ids) - length), stride)
    result = []
    for start in starts[:limit]:
        ids = tuple(token_ids[start : start + length])
        result.append(Window(ids if bos is None or stride else (bos, *ids[1:]), first))
    return result
