"""How near the log-probabilities of a real model are to float32: inferno in each compute and cache
type, and llama.cpp where llama-cpp-python is installed, on the same GGUF file and tokens.

    python benchmarks/exactness.py SmolLM2-135M-Instruct.Q4_1.gguf
    python benchmarks/exactness.py MODEL.gguf --dtypes bfloat16 --caches int8,fp8 --lengths 512,2048

The reference is transformers' Llama in float32 (`float32.py`), on eight windows of 512 tokens and
one of 8 000, whose beginning is the window of each other length. For the model of `tests/real` its
log-probabilities are stored there; for another file they are computed first, which takes minutes.
`--store FILE` writes them.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen
from float32 import Reference

from inferno import LLM, SamplingParams
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Options, open_model

ROOT = Path(__file__).parents[1]
STORED = ROOT / "tests" / "real" / "reference.npz"
WINDOW, WINDOWS, LONG = 512, 8, 8000
SCORED = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)

Logprobs = np.ndarray[Any, np.dtype[np.float32]]


@frozen(eq=False)
class Expected:
    """Texts as tokens, and the log-probability of each token but a text's first."""

    sha256: str
    """Of the GGUF file."""
    texts: tuple[list[int], ...]
    """The windows, then the long text."""
    logprobs: tuple[Logprobs, ...]

    def save(self, path: Path) -> None:
        np.savez_compressed(
            path,
            sha256=self.sha256,
            windows=np.array(self.texts[:-1], np.uint16),
            windows_logprobs=np.array(self.logprobs[:-1]),
            long=np.array(self.texts[-1], np.uint16),
            long_logprobs=self.logprobs[-1],
        )

    @classmethod
    def load(cls, path: Path) -> Expected:
        with np.load(path) as stored:
            return cls(
                str(stored["sha256"]),
                (*stored["windows"].tolist(), stored["long"].tolist()),
                (*stored["windows_logprobs"], stored["long_logprobs"]),
            )

    @classmethod
    def compute(cls, path: Path, reference: Reference) -> Expected:
        texts = tuple(_texts(path))
        return cls(digest(path), texts, tuple(reference.logprobs(text) for text in texts))


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _texts(path: Path) -> Iterator[list[int]]:
    """This project's guides and some of its code, in the model's tokens."""
    with open_model(str(path), Options(max_model_len=WINDOW, memory="2GiB")) as opened:
        tokenizer = Preprocessor.open(opened).tokenizer
    assert tokenizer is not None, "a GGUF file has its tokenizer"
    prose, code = (
        tokenizer.encode("\n\n".join(file.read_text() for file in sorted(files)))
        for files in (ROOT.glob("docs/how-to/*.md"), ROOT.glob("src/inferno/core/*.py"))
    )
    for tokens in (prose[LONG:], code):
        for start in range(0, WINDOWS // 2 * WINDOW, WINDOW):
            yield list(tokens[start : start + WINDOW])
    yield list(prose[:LONG])


def logprobs_of(llm: LLM, texts: Sequence[Sequence[int]]) -> tuple[Logprobs, ...]:
    """What inferno computes for them."""
    outputs = llm.generate([{"prompt_token_ids": list(text)} for text in texts], SCORED)
    logprobs = []
    for text, output in zip(texts, outputs, strict=True):
        assert output.prompt_logprobs is not None
        each = zip(text[1:], output.prompt_logprobs[1:], strict=True)
        logprobs.append(np.array([seen[t].logprob for t, seen in each if seen is not None]))
    return tuple(logprobs)


def _llama_cpp(path: Path, texts: Sequence[Sequence[int]]) -> tuple[Logprobs, ...]:
    import llama_cpp

    model = llama_cpp.Llama(
        str(path), n_ctx=max(map(len, texts)), n_batch=WINDOW, logits_all=True, verbose=False
    )
    logprobs = []
    for text in texts:
        model.reset()
        model.eval(list(text))
        values = []
        for position, token in enumerate(text[1:]):
            logits = model.scores[position].astype(np.float64)
            logits -= logits.max()
            values.append(logits[token] - np.log(np.exp(logits).sum()))
        logprobs.append(np.array(values))
    return tuple(logprobs)


def perplexity(logprobs: Sequence[Logprobs]) -> float:
    return float(np.exp(-np.concatenate(list(logprobs)).mean()))


def rms(ours: Sequence[Logprobs], theirs: Sequence[Logprobs]) -> float:
    difference = np.concatenate(list(ours)) - np.concatenate(list(theirs))
    return float(np.sqrt((difference.astype(np.float64) ** 2).mean()))


def _shown(name: str, ours: Sequence[Logprobs], expected: Expected, lengths: Sequence[int]) -> str:
    cells = []
    for length in lengths:
        of = slice(None, -1) if length == WINDOW else slice(-1, None)
        pairs = [each[of] for each in (ours, expected.logprobs)]
        got, want = ([each[: length - 1] for each in pair] for pair in pairs)
        value = perplexity(got)
        cells.append(f"{rms(got, want):.4f} | {value:.3f} | {value / perplexity(want):.4f}")
    return f"| {name} | {' | '.join(cells)} |"


def _measured(
    path: Path, texts: Sequence[Sequence[int]], configurations: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, tuple[Logprobs, ...]]]:
    for name, options in configurations.items():
        with LLM(str(path), max_model_len=max(map(len, texts)) + 1, **options) as llm:
            yield f"inferno, {name}", logprobs_of(llm, texts)
    if importlib.util.find_spec("llama_cpp") is None:
        print("llama.cpp is not measured: pip install llama-cpp-python", file=sys.stderr)
    else:
        yield "llama.cpp", _llama_cpp(path, texts)


def _split(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a GGUF file of a Llama")
    parser.add_argument("--dtypes", type=_split, default=["bfloat16", "float16", "float32"])
    parser.add_argument("--caches", type=_split, default=["int8", "fp8"])
    parser.add_argument("--lengths", type=_split, default=["512", "2048", "8000"])
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--store", type=Path, help="compute the reference, write it, and stop")
    args = parser.parse_args()
    lengths = [int(length) for length in args.lengths]
    if args.store is not None:
        Expected.compute(args.model, Reference.of_gguf(args.model)).save(args.store)
        return
    expected = Expected.load(STORED)
    if expected.sha256 != digest(args.model):
        expected = Expected.compute(args.model, Reference.of_gguf(args.model))
    texts = [*expected.texts[:-1], expected.texts[-1][: max(lengths)]]
    given: dict[str, dict[str, Any]] = {name: {"dtype": name} for name in args.dtypes}
    given |= {f"cache in {name}": {"kv_cache_dtype": name} for name in args.caches}
    given = {name: {**options, "memory": args.memory} for name, options in given.items()}
    print(f"| | {' | '.join(f'rms, {n} tokens | perplexity | beside float32' for n in lengths)} |")
    print("| --- |" + " ---: | ---: | ---: |" * len(lengths))
    for name, ours in _measured(args.model, texts, given):
        print(_shown(name, ours, expected, lengths), flush=True)


if __name__ == "__main__":
    main()
