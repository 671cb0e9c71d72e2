"""Measures the first token of another question about an image that a server has seen, beside text
with as many tokens, as many of them cached.

    inferno serve MODEL & python benchmarks/images.py http://127.0.0.1:8000 [--rounds 60]

Questions alternate, and so does which kind comes first. Needs Pillow.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import statistics
import time
from typing import Any

import httpx
from PIL import Image


def picture(size: tuple[int, int] = (1024, 768)) -> str:
    """Return an image like a photograph, as a data: URL."""
    coarse = Image.frombytes("RGB", (52, 40), random.Random(0).randbytes(52 * 40 * 3))
    written = io.BytesIO()
    coarse.resize(size).save(written, "JPEG", quality=95)
    return f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"


class Asking:
    """A server, and how long it takes to answer with one token."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=600)

    def seconds(self, content: list[dict[str, Any]]) -> tuple[float, dict[str, Any]]:
        """Return how long the answer took, and its usage."""
        messages = [{"role": "user", "content": content}]
        body = json.dumps({"messages": messages, "max_tokens": 1, "temperature": 0}).encode()
        began = time.perf_counter()
        answer = self.http.post(
            "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
        )
        taken = time.perf_counter() - began
        return taken, answer.raise_for_status().json()["usage"]

    def text_of(self, tokens: int, question: str) -> str:
        """Return text that makes a prompt this many tokens long, or slightly shorter."""
        words = [f"{i % 1000:03d} " for i in range(2 * tokens)]
        fewest, most = 1, len(words)
        while fewest < most - 1:
            middle = (fewest + most) // 2
            text = {"type": "text", "text": "".join(words[:middle]) + question}
            counted = self.http.post(
                "/tokenize", json={"messages": [{"role": "user", "content": [text]}]}
            )
            if counted.raise_for_status().json()["count"] <= tokens:
                fewest = middle
            else:
                most = middle
        return "".join(words[:fewest])


def main() -> None:
    """Print both medians, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    asking = Asking(options.url)
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": picture()}}

    def parts(before: dict[str, Any], number: int) -> list[dict[str, Any]]:
        return [before, {"type": "text", "text": f"What is number {number:04d} of it?"}]

    first, usage = asking.seconds(parts(image, 0))
    tokens = usage["prompt_tokens"]
    text = {"type": "text", "text": asking.text_of(tokens, parts(image, 0)[1]["text"])}
    asking.seconds(parts(text, 0))
    print(f"the first question about the image: {tokens} tokens, {first:.2f} s")
    times: dict[str, list[float]] = {"image": [], "text": []}
    cached: dict[str, int] = {}
    for number in range(1, options.rounds + 1):
        kinds = [("image", image), ("text", text)]
        for name, before in kinds if number % 2 else kinds[::-1]:
            taken, usage = asking.seconds(parts(before, number))
            times[name].append(taken)
            cached[name] = usage["prompt_tokens_details"]["cached_tokens"]
    seen, read = (statistics.median(times[name]) for name in ("image", "text"))
    pairs = statistics.median(a / b for a, b in zip(times["image"], times["text"], strict=True))
    print(f"another question: {seen * 1e3:.0f} ms, {cached['image']} tokens cached")
    print(f"about text:       {read * 1e3:.0f} ms, {cached['text']} tokens cached")
    print(f"medians {seen / read:.2f} x, of pairs {pairs:.2f} x")


if __name__ == "__main__":
    main()
