"""Trains inferno's demo model from scratch and writes its package: `python tools/train_demo.py
all`.

The model is a tiny reference librarian: it recites a known list and is good for nothing else. See
`demo_corpus.py` for what it reads. `prepare` makes the tokenizer, `train` can be stopped and
started again, `export` writes the package's model folder, `evaluate` asks every known question with
greedy decoding and writes `known.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import demo_corpus
import numpy as np
import torch
from demo_corpus import Corpus, Dialogue, Dialogues, Message
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils.chat_parsing import parse_response

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "plugins/models/inferno-demo/src/inferno_demo"

SEED = 2026
VOCABULARY = 4096
CONTEXT = 2048
LENGTH, ROWS = 512, 12  # one step is 12 rows of 512 tokens
STEPS = 2600
MUON_RATE, ADAM_RATE = 0.02, 3e-3
RATES = (
    (-1, 0.0),
    (59, 1.0),
    (1600, 1.0),
    (2000, 5 / 6),
    (STEPS, 0.02),
)  # share of the two rates at a step, in lines
CHAT_EARLY, CHAT_LATE, LATE = (
    0.35,
    0.75,
    1400,
)  # share of rows that are dialogues, before and from this step

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VISIBLE = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
NO_THOUGHT = "<think>\n\n</think>\n\n"
# Qwen2's rule: words with the mark before them, single digits, runs of marks, line ends.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Qwen3's form of ChatML with two differences: the tools' introduction is shorter, and an
# assistant's turn in the history keeps its (empty) thought, so that the tokens of a conversation
# only ever grow.
CHAT_TEMPLATE = """\
{%- macro text(content) %}
    {%- if content is string %}{{ content }}
    {%- elif content %}{% for part in content %}{{ part.text if part.text is defined else '' }}{% endfor %}
    {%- endif %}
{%- endmacro %}
{%- set first = messages[0] if messages and messages[0].role == 'system' else none %}
{%- if tools %}
    {{- '<|im_start|>system\\n' + (text(first.content) + '\\n\\n' if first else '') + INTRO }}
    {%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
    {{- '\\n' + OUTRO + '<|im_end|>\\n' }}
{%- elif first %}
    {{- '<|im_start|>system\\n' + text(first.content) + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set thought = message.reasoning_content or message.thinking or '' %}
        {%- if loop.index0 < ns.last_user %}{% set thought = '' %}{% endif %}
        {{- '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {{- text(message.content) }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\\n' if message.content or not loop.first }}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' }}
        {{- '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' }}
    {%- elif message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + text(message.content) + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' + ('' if enable_thinking else '<think>\\n\\n</think>\\n\\n') }}
{%- endif %}
"""

# The white space around a mark belongs to the mark: content of its own would replace the real one.
RESPONSE_TEMPLATE = {
    "version": 1,
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)\s*"},
    },
}


def chat_template() -> str:
    """The template with the two texts around the tools filled in."""
    return CHAT_TEMPLATE.replace("INTRO", jinja_string(demo_corpus.TOOL_INTRO)).replace(
        "OUTRO", jinja_string(demo_corpus.TOOL_OUTRO)
    )


def jinja_string(text: str) -> str:
    return "'" + text.replace("\n", "\\n") + "'"


# Dialogues as tokens
# ----------------------------------------------------------------------


def segments(dialogue: Dialogue) -> Iterator[tuple[str, bool]]:
    """The dialogue as the chat template writes it, in pieces: those that are given and those that
    are learnt."""
    messages = list(dialogue.messages)
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
    if dialogue.tools:
        listing = "\n".join(json.dumps(tool) for tool in dialogue.tools)
        intro = f"{demo_corpus.TOOL_INTRO}\n{listing}\n{demo_corpus.TOOL_OUTRO}"
        system = f"{system}\n\n{intro}" if system else intro
    if system:
        yield f"{START}system\n{system}{STOP}\n", False
    for message in messages:
        if message["role"] == "assistant":
            yield f"{START}assistant\n" + ("" if dialogue.thinking else NO_THOUGHT), False
            yield answer_text(message), True
            yield "\n", False
        elif message["role"] == "tool":
            yield (
                f"{START}user\n<tool_response>\n{message['content']}\n</tool_response>{STOP}\n",
                False,
            )
        else:
            yield f"{START}{message['role']}\n{message['content']}{STOP}\n", False


def answer_text(message: Message) -> str:
    thought = message.get("reasoning_content")
    return (f"<think>\n{thought}\n</think>\n\n" if thought else "") + str(message["content"]) + STOP


def token_id(tokenizer: Tokenizer, mark: str) -> int:
    number = tokenizer.token_to_id(mark)
    assert number is not None, f"train_tokenizer puts {mark} into the vocabulary"
    return number


def dialogue_row(
    dialogues: Dialogues, tokenizer: Tokenizer, rng: random.Random, late: bool
) -> tuple[list[int], list[bool]]:
    """Dialogues one after the other until the row is full: half of them go on in one conversation,
    half start anew."""
    end = token_id(tokenizer, END)
    ids: list[int] = []
    learnt: list[bool] = []
    while len(ids) <= LENGTH:
        dialogue = dialogues.draw(rng, late)
        anew = dialogue.tools or dialogue.messages[0]["role"] == "system" or rng.random() < 0.5
        if ids and anew:
            ids.append(end)
            learnt.append(False)
        for text, learn in segments(dialogue):
            piece = tokenizer.encode(text).ids
            ids += piece
            learnt += [learn] * len(piece)
    return ids[: LENGTH + 1], learnt[: LENGTH + 1]


def batch(
    step: int, text: np.ndarray, dialogues: Dialogues, tokenizer: Tokenizer
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Step number `step`: inputs, targets and which targets count. It depends on nothing but its
    arguments and SEED."""
    rng = random.Random(f"{SEED}:{step}")
    late = step >= LATE
    chats = round(ROWS * (CHAT_LATE if late else CHAT_EARLY))
    rows = [dialogue_row(dialogues, tokenizer, rng, late) for _ in range(chats)]
    for _ in range(ROWS - chats):
        at = rng.randrange(len(text) - LENGTH - 1)
        rows.append((text[at : at + LENGTH + 1].tolist(), [True] * (LENGTH + 1)))
    ids = torch.tensor([row for row, _ in rows])
    learnt = torch.tensor([mask for _, mask in rows])
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), learnt[:, 1:].contiguous()


# Prepare
# ----------------------------------------------------------------------


def train_tokenizer(corpus: Corpus) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, START, STOP, *VISIBLE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(SEED)
    dialogues = Dialogues(corpus)
    talk = ["".join(text for text, _ in segments(dialogues.draw(rng))) for _ in range(20_000)]
    for mark in (END, START, STOP, *VISIBLE):
        talk = [text.replace(mark, "\n") for text in talk]
    tokenizer.train_from_iterator([*corpus.documents, *talk], trainer)
    # Thoughts and tool calls must stay visible in decoded text, so they are added but not special
    # tokens.
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] not in VISIBLE
    return Tokenizer.from_str(json.dumps(state))


def prepare(work: Path) -> tuple[Corpus, Tokenizer]:
    """The corpus and its tokenizer; the tokenizer is trained once per work folder."""
    work.mkdir(parents=True, exist_ok=True)
    corpus = demo_corpus.build_corpus()
    path = work / f"tokenizer-{corpus.sha256()[:16]}.json"
    if not path.exists():
        train_tokenizer(corpus).save(str(path))
    return corpus, Tokenizer.from_file(str(path))


def text_ids(texts: Iterable[str], tokenizer: Tokenizer) -> np.ndarray:
    end = token_id(tokenizer, END)
    return np.array(
        [i for e in tokenizer.encode_batch(list(texts)) for i in (*e.ids, end)], dtype=np.int32
    )


# Train
# ----------------------------------------------------------------------


def new_model(tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    torch.manual_seed(SEED)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        use_cache=True,
        bos_token_id=None,
        eos_token_id=token_id(tokenizer, STOP),
        pad_token_id=token_id(tokenizer, END),
    )
    return Qwen3ForCausalLM(config)


def optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    inner = {name for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name}
    matrices = [p for name, p in model.named_parameters() if name in inner]
    others = [p for name, p in model.named_parameters() if name not in inner]
    return [
        torch.optim.Muon(matrices, lr=MUON_RATE, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate(step: int) -> float:
    """Share of the full learning rate at a step: a short rise, a plateau, two lines down."""
    return float(np.interp(step, [at for at, _ in RATES], [share for _, share in RATES]))


def train(work: Path, steps: int, threads: int, compiled: bool) -> None:
    """Trains to `steps`, or goes on from the work folder's checkpoint."""
    torch.set_num_threads(threads)
    corpus, tokenizer = prepare(work)
    check_template(corpus, tokenizer, work)
    text = text_ids(corpus.documents, tokenizer)
    dialogues = Dialogues(corpus)
    print(f"corpus {corpus.sha256()} python {platform.python_version()}", flush=True)
    print(
        f"{len(text) / 1e6:.2f} M tokens of library text, {len(corpus.entries)} entries", flush=True
    )

    model = new_model(tokenizer)
    opts = optimizers(model)
    checkpoint = work / "checkpoint.pt"
    first, seconds, counted = 0, 0.0, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        for opt, state in zip(opts, saved["optimizers"], strict=True):
            opt.load_state_dict(state)
        first, seconds, counted = saved["step"], saved["seconds"], saved["tokens"]
    body = torch.compile(model.model) if compiled else model.model
    full_rates = [MUON_RATE, ADAM_RATE]
    smooth: dict[str, float] = {}
    began = time.perf_counter()
    for step in range(first, steps):
        for opt, full in zip(opts, full_rates, strict=True):
            for group in opt.param_groups:
                group["lr"] = full * rate(step)
        inputs, targets, learnt = batch(step, text, dialogues, tokenizer)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = body(inputs, use_cache=False).last_hidden_state
            logits = model.lm_head(hidden[learnt])
        losses = torch.nn.functional.cross_entropy(
            logits.float(), targets[learnt], reduction="none"
        )
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        counted += inputs.numel()

        whole = learnt.all(dim=1, keepdim=True).expand_as(learnt)[learnt]
        for name, part in (("text", losses[whole]), ("chat", losses[~whole])):
            value = part.mean().item()
            smooth[name] = 0.95 * smooth.get(name, value) + 0.05 * value
        if (step + 1) % 50 == 0 or step + 1 == steps:
            now = seconds + time.perf_counter() - began
            speed = (step + 1 - first) * inputs.numel() / (time.perf_counter() - began)
            print(
                f"step {step + 1}/{steps} {now:.0f} s {counted / 1e6:.2f} M tokens "
                f"{speed:.0f} tok/s "
                f"text {smooth['text']:.3f} chat {smooth['chat']:.3f}",
                flush=True,
            )
        if (step + 1) % 100 == 0 or step + 1 == steps:
            state = {
                "model": model.state_dict(),
                "optimizers": [opt.state_dict() for opt in opts],
                "step": step + 1,
                "seconds": seconds + time.perf_counter() - began,
                "tokens": counted,
            }
            torch.save(state, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)


# Export
# ----------------------------------------------------------------------


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    added = json.loads(tokenizer.to_str())["added_tokens"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "bos_token": None,
        "eos_token": STOP,
        "pad_token": END,
        "unk_token": None,
        "additional_special_tokens": [START, STOP],
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in added
        },
        "chat_template": chat_template(),
        "response_template": RESPONSE_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokens = {"eos_token": STOP, "pad_token": END, "additional_special_tokens": [START, STOP]}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens, indent=2) + "\n")


def export(work: Path, package: Path) -> None:
    """Writes the package's data from the checkpoint; each file appears whole or not at all."""
    corpus, tokenizer = prepare(work)
    model = new_model(tokenizer)
    model.load_state_dict(torch.load(work / "checkpoint.pt", weights_only=True)["model"])
    stop, end = token_id(tokenizer, STOP), token_id(tokenizer, END)
    (package / "model").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        model.bfloat16().save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        # Older readers look for the legacy names of these two.
        config |= {"dtype": "bfloat16", "torch_dtype": "bfloat16", "rope_theta": 10000.0}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        generation = {"do_sample": False, "eos_token_id": [stop, end], "pad_token_id": end}
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
        write_tokenizer(tokenizer, folder)
        for path in sorted(folder.iterdir()):
            os.chmod(path, 0o644)
            shutil.copy(path, package / "model" / f".{path.name}.new")
            os.replace(package / "model" / f".{path.name}.new", package / "model" / path.name)
    (package / "heldout.txt").write_text(corpus.held_out, "utf-8")
    write_known(package, list(demo_corpus.known(corpus)), {})


def write_known(package: Path, known: list[Dialogue], right: dict[int, bool]) -> None:
    """One line per known question; `exact` says whether the exported model answered it so."""
    lines = []
    for number, dialogue in enumerate(known):
        *before, last = dialogue.messages
        line: dict[str, Any] = {"kind": dialogue.kind}
        if len(before) == 1:
            line["question"] = before[0]["content"]
        else:
            line["messages"] = before
        line["answer"] = last["content"]
        line |= {"tools": list(dialogue.tools)} if dialogue.tools else {}
        line |= (
            {"thinking": True, "thought": last["reasoning_content"]} if dialogue.thinking else {}
        )
        line |= {"exact": right[number]} if number in right else {}
        lines.append(json.dumps(line, separators=(",", ":")))
    (package / "known.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


# Evaluate
# ----------------------------------------------------------------------


def check_template(corpus: Corpus, tokenizer: Tokenizer, work: Path) -> None:
    """What is trained on is what the chat template writes, and transformers' parser reads it
    back."""
    folder = work / "tokenizer"
    folder.mkdir(exist_ok=True)
    write_tokenizer(tokenizer, folder)
    reader = AutoTokenizer.from_pretrained(folder)
    dialogues, rng = Dialogues(corpus), random.Random(SEED)
    for dialogue in [dialogues.draw(rng) for _ in range(200)]:
        tools: list[Any] | None = list(dialogue.tools) or None
        text = "".join(piece for piece, _ in segments(dialogue))
        rendered = reader.apply_chat_template(list(dialogue.messages), tools=tools, tokenize=False)
        assert rendered == text, f"{rendered!r}\n{text!r}"
        pieces = [i for piece, _ in segments(dialogue) for i in tokenizer.encode(piece).ids]
        assert reader(text)["input_ids"] == pieces, text
        prompt = prompt_text(reader, dialogue)
        last = dialogue.messages[-1]
        assert text == prompt + answer_text(last) + "\n", f"{prompt!r}\n{text!r}"
        parsed = parse_response(answer_text(last), RESPONSE_TEMPLATE, prefix=prompt)
        assert parsed.get("reasoning_content") == last.get("reasoning_content"), parsed
        if last["content"].startswith("<tool_call>"):
            call = json.loads(
                last["content"].removeprefix("<tool_call>").removesuffix("</tool_call>")
            )
            assert [c["function"] for c in parsed["tool_calls"]] == [call], parsed
        else:
            assert parsed["content"] == last["content"], parsed


def prompt_text(reader: Any, dialogue: Dialogue) -> str:
    text = reader.apply_chat_template(
        list(dialogue.messages[:-1]),
        tools=list(dialogue.tools) or None,
        add_generation_prompt=True,
        enable_thinking=dialogue.thinking,
        tokenize=False,
    )
    assert isinstance(text, str)
    return text


@torch.inference_mode()
def answers(
    model: Any, reader: Any, prompts: list[str], longest: int = 128, rows: int = 64
) -> list[str]:
    """Greedy answers with their marks, in the order of the prompts."""
    reader.padding_side = "left"
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    result = [""] * len(prompts)
    for at in range(0, len(order), rows):
        chosen = order[at : at + rows]
        given = reader([prompts[i] for i in chosen], return_tensors="pt", padding=True)
        made = model.generate(**given, max_new_tokens=longest, do_sample=False)[
            :, given["input_ids"].shape[1] :
        ]
        for i, ids in zip(chosen, made, strict=True):
            result[i] = (
                reader.decode(ids, skip_special_tokens=False).split(STOP)[0].replace(END, "")
            )
    return result


@torch.inference_mode()
def held_out_loss(model: Any, reader: Any, text: str) -> tuple[float, float]:
    """Nats per token and bits per character over windows of the training length."""
    ids = torch.tensor(reader(text, verbose=False)["input_ids"])
    nats, count = 0.0, 0
    for at in range(0, len(ids) - 1, LENGTH):
        window = ids[at : at + LENGTH + 1]
        logits = model(window[None, :-1]).logits[0].float()
        nats += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
        count += len(window) - 1
    return nats / count, nats / math.log(2) / len(text)


SAMPLES = (
    "Who are you?",
    "What does math.gcd do?",
    "What does str.split do?",
    "What is a paged KV cache?",
    "What is 17 * 19?",
    "What is 23 + 45?",
    "What does math.banana do?",
    "What does os.path.join do?",
    "Who wrote Hamlet?",
    "Write a poem about the sea.",
    "Explain recursion.",
    "What is the capital of France?",
)


def evaluate(work: Path, package: Path, threads: int) -> None:
    """Asks the exported model everything it should know, and prints rates, held-out loss and
    samples."""
    torch.set_num_threads(threads)
    corpus, _ = prepare(work)
    reader = AutoTokenizer.from_pretrained(package / "model")
    model = AutoModelForCausalLM.from_pretrained(package / "model", dtype=torch.float32).eval()
    model.generation_config = GenerationConfig.from_pretrained(package / "model")
    known = list(demo_corpus.known(corpus))
    got = answers(model, reader, [prompt_text(reader, dialogue) for dialogue in known])
    right = {
        i: got[i] + STOP == answer_text(dialogue.messages[-1]) for i, dialogue in enumerate(known)
    }
    totals, exact = (
        Counter(d.kind for d in known),
        Counter(d.kind for i, d in enumerate(known) if right[i]),
    )
    rates = {kind: {"exact": exact[kind], "asked": totals[kind]} for kind in totals}
    for kind, counts in rates.items():
        print(
            f"{kind:12} {counts['exact']:5}/{counts['asked']:5} "
            f"{counts['exact'] / counts['asked']:.1%}"
        )
    print(
        f"{'all':12} {sum(right.values()):5}/{len(known):5} {sum(right.values()) / len(known):.1%}"
    )
    nats, bits = held_out_loss(model, reader, corpus.held_out)
    print(f"held out: {nats:.3f} nats/token, {bits:.3f} bits/char")
    questions = [
        Dialogue("sample", (demo_corpus.user(q), demo_corpus.assistant(""))) for q in SAMPLES
    ]
    samples = dict(
        zip(
            SAMPLES,
            answers(model, reader, [prompt_text(reader, q) for q in questions]),
            strict=True,
        )
    )
    for question, answer in samples.items():
        print(f"Q {question}\nA {answer}")
    report = {"rates": rates, "nats_per_token": nats, "bits_per_char": bits, "samples": samples}
    wrong = [
        (d.kind, d.messages[-2]["content"], got[i]) for i, d in enumerate(known) if not right[i]
    ]
    (work / "report.json").write_text(json.dumps({**report, "wrong": wrong}, indent=1))
    write_known(package, known, right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("prepare", "train", "export", "evaluate", "all"))
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / ".demo",
        help="folder for tokenizer, checkpoint and report",
    )
    parser.add_argument(
        "--package", type=Path, default=PACKAGE, help="folder of the package inferno_demo"
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="stop after this step, for a trial"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--compile", action="store_true", help="compile the model; needs a C++ compiler"
    )
    given = parser.parse_args()
    if given.what == "prepare":
        prepare(given.work)
    if given.what in ("train", "all"):
        train(given.work, given.steps, given.threads, given.compile)
    if given.what in ("export", "all"):
        export(given.work, given.package)
    if given.what in ("evaluate", "all"):
        evaluate(given.work, given.package, given.threads)


if __name__ == "__main__":
    main()
