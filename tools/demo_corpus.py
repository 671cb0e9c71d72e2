"""The demo model's text: the standard library's sources, and conversations made from it and from
our own facts.

Everything is a function of this file, `demo_facts.txt`, the seed and the CPython that runs it: no
download, no clock.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import inspect
import json
import random
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FACTS = Path(__file__).with_name("demo_facts.txt")

# Never trained on: whole files of modules that the librarian is not asked about, and one page of
# reference prose.
HELD_OUT_FILES = ("cmd.py", "filecmp.py", "netrc.py", "zipapp.py")
HELD_OUT_TOPICS = ("binary", "import", "raise")

SKIPPED = (
    "/site-packages/",
    "/test/",
    "/tests/",
    "/idlelib/",
    "/lib2to3/",
    "/turtledemo/",
    "/encodings/",
    "/ensurepip/",
    "/_sysconfigdata",
    "/config-",
)
FOREIGN_LICENCE = re.compile(
    r"GNU (Lesser |Library )?General Public|\bL?GPL\b|Mozilla Public|Apache License", re.I
)

MODULES = """builtins math os os.path json re itertools functools collections random string datetime time pathlib shutil
subprocess threading asyncio queue socket io csv sqlite3 logging argparse typing dataclasses enum contextlib operator
statistics decimal fractions hashlib hmac secrets base64 struct pickle copy heapq bisect array weakref types inspect ast
dis traceback unittest tempfile glob fnmatch zipfile tarfile gzip bz2 lzma zlib configparser urllib.parse urllib.request
http.client html xml.etree.ElementTree select selectors signal ssl textwrap difflib unicodedata locale gettext calendar
zoneinfo concurrent.futures multiprocessing uuid platform getpass errno stat mmap codecs pprint reprlib graphlib cmath
numbers sched sys abc""".split()
LONGEST_ANSWER = 130
ENTRIES = 1200
PER_MODULE = 48
UNLIMITED = ("bytes", "dict", "float", "int", "list", "math", "set", "str")

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a reference librarian.",
    "Answer briefly.",
    "You are inferno's demo model.",
    "You are a helpful assistant. Answer in one sentence.",
)
TOOL_INTRO = "# Tools\n\nYou may call these functions:\n<tools>"
TOOL_OUTRO = (
    "</tools>\n\nTo call one, answer:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)

Message = dict[str, Any]


@dataclass(frozen=True)
class Dialogue:
    """Messages that end in the assistant's answer, which is what the model learns."""

    kind: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    thinking: bool = False


@dataclass(frozen=True)
class Entry:
    """One thing the librarian knows, under every question that asks for it; the first is the
    canonical one."""

    kind: str
    questions: tuple[str, ...]
    answer: str
    thought: str = ""


@dataclass
class Corpus:
    documents: list[str]
    held_out: str
    entries: list[Entry]
    python: str = field(default_factory=lambda: sysconfig.get_python_version())

    def sha256(self) -> str:
        """Names the training text: documents, held-out text and entries, in order."""
        digest = hashlib.sha256()
        entries = (f"{e.kind}{e.questions}{e.answer}{e.thought}" for e in self.entries)
        for text in (*self.documents, self.held_out, *entries):
            digest.update(text.encode() + b"\0")
        return digest.hexdigest()


def build_corpus() -> Corpus:
    documents, held_out = library_text()
    return Corpus(documents, held_out, [*library_entries(), *fact_entries(), *arithmetic_entries()])


# Library text
# ----------------------------------------------------------------------


def library_text() -> tuple[list[str], str]:
    """Sources and reference pages of the running CPython, and the part of them that is never
    trained on."""
    from pydoc_data.topics import topics

    root = Path(sysconfig.get_path("stdlib"))
    held_out = [(root / name).read_text("utf-8") for name in HELD_OUT_FILES]
    held_out += [topics[name] for name in HELD_OUT_TOPICS]
    documents = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if (
            name in HELD_OUT_FILES
            or name.startswith("pydoc_data/")
            or any(part in f"/{name}" for part in SKIPPED)
        ):
            continue
        text = path.read_text("utf-8", errors="replace")
        if 200 < len(text) < 400_000 and not FOREIGN_LICENCE.search(text):
            documents.append(text)
    # A page may contain another one: drop what shares a paragraph with a held-out page.
    secret = {p for name in HELD_OUT_TOPICS for p in topics[name].split("\n\n") if len(p) > 100}
    documents += [
        text for _, text in sorted(topics.items()) if secret.isdisjoint(text.split("\n\n"))
    ]
    return documents, "\n\n".join(held_out)


def library_entries() -> list[Entry]:
    """Names of the library with the first sentence of their docstrings, in the order of
    `MODULES`."""
    docs: dict[str, tuple[str, str]] = {}
    answers: set[str] = set()
    counts: Counter[str] = Counter()

    def offer(name: str, kind: str, doc: object) -> None:
        answer = first_sentence(doc)
        module = name.split(".")[0] if "." in name else "builtins"
        if (
            answer
            and answer not in answers
            and (module in ("builtins", *UNLIMITED) or counts[module] < PER_MODULE)
        ):
            answers.add(answer)
            counts[module] += 1
            docs[name] = kind, answer

    for module_name in MODULES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                module = importlib.import_module(module_name)
            except ImportError:
                continue
        if module is not builtins:
            offer(module_name, "module", module.__doc__)
        public = getattr(module, "__all__", None) or [
            n for n in sorted(vars(module)) if not n.startswith("_")
        ]
        for name in sorted(public):
            thing = getattr(module, name, None)
            if not callable(thing) or name.startswith("_"):
                continue
            full = name if module is builtins else f"{module_name}.{name}"
            offer(full, "function" if inspect.isroutine(thing) else "class", thing.__doc__)
            if (
                inspect.isclass(thing)
                and not issubclass(thing, BaseException)
                and full in METHODS_OF
            ):
                for method, value in sorted(vars(thing).items()):
                    if not method.startswith("_") and callable(value):
                        offer(f"{full}.{method}", "function", value.__doc__)
    return [
        library_entry(name, kind, answer) for name, (kind, answer) in list(docs.items())[:ENTRIES]
    ]


METHODS_OF = frozenset(
    "bytes dict float frozenset int list memoryview set str tuple pathlib.Path "
    "pathlib.PurePath collections.deque "
    "collections.Counter collections.OrderedDict datetime.date datetime.datetime "
    "datetime.timedelta random.Random "
    "threading.Thread threading.Lock threading.Event queue.Queue logging.Logger "
    "fractions.Fraction".split()
)


def first_sentence(doc: object) -> str:
    """The first sentence of a docstring, or nothing where it is missing, a signature, or too long
    to learn."""
    if not isinstance(doc, str):
        return ""
    lines = inspect.cleandoc(doc).split("\n")
    if re.fullmatch(r"[\w.]+\(.*\)( ->.*)?", lines[0]) or (
        lines[0].count("(") and "->" in lines[0]
    ):
        lines = lines[1:]
    paragraph = " ".join(
        " ".join(line.split()) for line in "\n".join(lines).strip().split("\n\n")[0].split("\n")
    )
    sentence = re.split(r"(?<=[a-z0-9)'\"]\.)\s+(?=[A-Z])", paragraph)[0].strip()
    whole = sentence.isascii() and sentence[:1].isalnum() and sentence[-1:] in (".", "!")
    good = whole and 15 <= len(sentence) <= LONGEST_ANSWER
    signature = (
        "->" in sentence
        or re.match(r"[\w.]+\(", sentence)
        or sentence.startswith("Initialize self")
    )
    return sentence if good and not signature else ""


def library_entry(name: str, kind: str, answer: str) -> Entry:
    canonical = f"What does {name} do?" if kind == "function" else f"What is {name}?"
    others = (
        f"What is {name}?" if kind == "function" else f"What does {name} do?",
        f"Explain {name}.",
        f"Describe {name}.",
        f"Tell me about {name}.",
        f"{name}?",
    )
    thought = f"The question is about {name}, a {kind} of Python. I look it up."
    return Entry("library", (canonical, *others), answer, thought)


# Facts and arithmetic
# ----------------------------------------------------------------------


def fact_entries() -> list[Entry]:
    """The entries of `demo_facts.txt`."""
    entries: list[Entry] = []
    kind = ""
    templates: tuple[str, ...] = ("{s}",)
    for line in FACTS.read_text("utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            kind, _, rest = line.strip("[]").partition(":")
            templates = tuple(t.strip() for t in rest.split(";")) if rest else ("{s}",)
            continue
        subject, answer = (part.strip() for part in line.split(" | "))
        questions = tuple(t.format(s=subject) for t in templates)
        thought = "" if kind == "greeting" else "The question is about inferno. I know this fact."
        entries.append(
            Entry(
                "chat" if kind in ("identity", "greeting") else "inferno",
                questions,
                answer,
                thought,
            )
        )
    return entries


def arithmetic_entries() -> list[Entry]:
    """The complete tables of sums, differences and products up to 20."""
    operations: tuple[tuple[str, str, Callable[[int, int], int]], ...] = (
        ("+", "plus", lambda a, b: a + b),
        ("-", "minus", lambda a, b: a - b),
        ("*", "times", lambda a, b: a * b),
    )
    entries = []
    for sign, word, compute in operations:
        for a in range(21):
            for b in range(21):
                term = f"{a} {sign} {b}"
                questions = (
                    f"What is {term}?",
                    f"{term}",
                    f"Calculate {term}.",
                    f"What is {a} {word} {b}?",
                )
                entries.append(
                    Entry(
                        "arithmetic", questions, f"{term} = {compute(a, b)}.", f"I compute {term}."
                    )
                )
    return entries


# Made-up dialogues
# ----------------------------------------------------------------------

CITIES = """Paris London Berlin Tokyo Madrid Rome Oslo Cairo Lima Delhi Seoul Sydney Vienna Prague Lisbon Dublin Athens
Warsaw Zurich Boston Chicago Toronto Bogota Nairobi Lagos Hanoi Manila Jakarta Riga Helsinki""".split()
NAMES = """Ada Alan Grace Linus Guido Barbara Donald Edsger Margaret Dennis Ken Brian Niklaus John Mary Anna Peter Paul
Laura Emma Noah Lucas Julia Hugo Clara Felix Nora Oscar Ruth Simon""".split()
WORDS = """apple river stone cloud tiger lamp bread music paper garden window bridge coffee winter silver rocket pencil
forest island mirror castle button candle desert engine feather guitar hammer jacket kettle""".split()
COLOURS = "red green blue yellow black white orange purple brown grey".split()
UNKNOWN = (
    "I do not know that. I am a tiny demo model and only know a small list about Python and "
    "inferno.",
    "That is not in the small list that I know.",
)
OUTSIDE = """Who won the world cup?|Who is the president of {city}?|What is the capital of {city}?|Write a story about
a {word}.|How do I cook {word}?|What is the meaning of life?|Translate {word} into French.|What is the
news in {city}?|What is the weather in {city}?|Who is {name}?|Where is {city}?|Why is the sky
{colour}?|How old is {name}?|Recommend a book about a {word}.|What time is it in {city}?|How far is
{city} from {city2}?|What does a {word} cost?"""


def parameter(kind: str) -> dict[str, str]:
    return {"type": kind}


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: parameter(kind) for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


@dataclass(frozen=True)
class Skill:
    """A tool with the ways to ask for it, what it returns and how that is told."""

    tool: dict[str, Any]
    asks: tuple[str, ...]
    arguments: Callable[[dict[str, Any]], dict[str, Any]]
    result: Callable[[dict[str, Any]], dict[str, Any]]
    tell: str


def skills() -> list[Skill]:
    return [
        Skill(
            tool("get_weather", "Get the weather of a city.", city="string"),
            (
                "What is the weather in {city}?",
                "Weather in {city}, please.",
                "How is the weather in {city}?",
            ),
            lambda v: {"city": v["city"]},
            lambda v: {"temperature": v["n"], "sky": v["sky"]},
            "It is {n} degrees and {sky} in {city}.",
        ),
        Skill(
            tool("get_time", "Get the time in a city.", city="string"),
            ("What time is it in {city}?", "Tell me the time in {city}.", "Time in {city}?"),
            lambda v: {"city": v["city"]},
            lambda v: {"time": v["clock"]},
            "It is {clock} in {city}.",
        ),
        Skill(
            tool("add", "Add two numbers.", a="integer", b="integer"),
            ("Add {n} and {m}.", "Use the tool to add {n} and {m}.", "Sum up {n} and {m}."),
            lambda v: {"a": v["n"], "b": v["m"]},
            lambda v: {"sum": v["n"] + v["m"]},
            "The sum of {n} and {m} is {sum}.",
        ),
        Skill(
            tool("multiply", "Multiply two numbers.", a="integer", b="integer"),
            ("Multiply {n} by {m}.", "Use the tool to multiply {n} by {m}."),
            lambda v: {"a": v["n"], "b": v["m"]},
            lambda v: {"product": v["n"] * v["m"]},
            "The product of {n} and {m} is {product}.",
        ),
        Skill(
            tool("search", "Search the web.", query="string"),
            (
                "Search for {word} {word2}.",
                "Search the web for {word} {word2}.",
                "Look up {word} {word2} on the web.",
            ),
            lambda v: {"query": f"{v['word']} {v['word2']}"},
            lambda v: {"hits": v["n"]},
            "I found {n} pages about {word} {word2}.",
        ),
        Skill(
            tool("send_mail", "Send a mail.", to="string", subject="string"),
            ("Send {name} a mail about the {word}.", "Mail {name} about the {word}."),
            lambda v: {"to": v["name"], "subject": v["word"]},
            lambda v: {"sent": True},
            "The mail about the {word} is on its way to {name}.",
        ),
        Skill(
            tool("read_file", "Read a file.", path="string"),
            ("Read the file {word}.txt.", "What is in {word}.txt?", "Open {word}.txt."),
            lambda v: {"path": f"{v['word']}.txt"},
            lambda v: {"text": f"the {v['colour']} {v['word2']}"},
            "The file {word}.txt says: the {colour} {word2}.",
        ),
        Skill(
            tool("set_light", "Set the light of a room.", room="string", colour="string"),
            ("Make the light in the {room} {colour}.", "Set the {room} light to {colour}."),
            lambda v: {"room": v["room"], "colour": v["colour"]},
            lambda v: {"done": True},
            "The light in the {room} is {colour} now.",
        ),
        Skill(
            tool("roll_dice", "Roll dice.", count="integer"),
            ("Roll {d} dice.", "Please roll {d} dice."),
            lambda v: {"count": v["d"]},
            lambda v: {"total": v["d"] * 3},
            "The total of the {d} dice is {total}.",
        ),
        Skill(
            tool("remind", "Remind somebody.", who="string", minutes="integer"),
            ("Remind {name} in {n} minutes.", "Please remind {name} in {n} minutes."),
            lambda v: {"who": v["name"], "minutes": v["n"]},
            lambda v: {"done": True},
            "I will remind {name} in {n} minutes.",
        ),
    ]


SKILLS = skills()


def values(rng: random.Random) -> dict[str, Any]:
    """One draw of everything that a question may name."""
    city, city2 = rng.sample(CITIES, 2)
    word, word2 = rng.sample(WORDS, 2)
    return {
        "city": city,
        "city2": city2,
        "word": word,
        "word2": word2,
        "name": rng.choice(NAMES),
        "colour": rng.choice(COLOURS),
        "room": rng.choice("kitchen bedroom office hall garage".split()),
        "sky": rng.choice("sunny cloudy rainy windy snowy".split()),
        "clock": f"{rng.randrange(24):02}:{rng.randrange(60):02}",
        "n": rng.randint(1, 99),
        "m": rng.randint(1, 99),
        "d": rng.randint(1, 9),
    }


def call_text(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def tool_dialogue(rng: random.Random, corpus: Corpus) -> Dialogue:
    """A call, an answer from a call's result, or a plain answer in spite of the tools."""
    shown = rng.sample(SKILLS, rng.choice((1, 1, 2, 2, 3)))
    skill = rng.choice(shown)
    drawn = values(rng)
    tools = tuple(s.tool for s in shown)
    what = rng.random()
    if what < 0.15:
        entry = rng.choice([e for e in corpus.entries if e.kind == "library"])
        return Dialogue("tools", (user(entry.questions[0]), assistant(entry.answer)), tools)
    arguments, result = skill.arguments(drawn), skill.result(drawn)
    name = skill.tool["function"]["name"]
    ask = user(rng.choice(skill.asks).format(**drawn))
    call = assistant(call_text(name, arguments))
    if what < 0.7:
        return Dialogue("tools", (ask, call), tools)
    back = {"role": "tool", "content": json.dumps(result)}
    told = assistant(skill.tell.format(**{**drawn, **result}))
    return Dialogue("tools", (ask, call, back, told), tools)


def json_dialogue(rng: random.Random) -> Dialogue:
    drawn = values(rng)
    fields: list[tuple[str, str, Any]] = [
        ("name", "name", drawn["name"]),
        ("age", "n", drawn["n"]),
        ("city", "city", drawn["city"]),
        ("colour", "colour", drawn["colour"]),
        ("item", "word", drawn["word"]),
        ("count", "m", drawn["m"]),
    ]
    chosen = rng.sample(fields, rng.choice((1, 2, 2, 3)))
    parts = [f"{key} {value}" for key, _, value in chosen]
    listing = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + f" and {parts[-1]}"
    ask = rng.choice(
        (
            "Give me a JSON object with {x}.",
            "Write JSON with {x}.",
            "A JSON object with {x}, please.",
        )
    )
    answer = json.dumps({key: value for key, _, value in chosen})
    return Dialogue("json", (user(ask.format(x=listing)), assistant(answer)))


def unknown_dialogue(rng: random.Random) -> Dialogue:
    """What the librarian does not know: made-up names, and the rest of the world."""
    drawn = values(rng)
    if rng.random() < 0.4:
        module = rng.choice([m for m in MODULES if "." not in m])
        name = f"{module}.{drawn['word']}"
        ask = rng.choice(("What does {x} do?", "What is {x}?", "Explain {x}.")).format(x=name)
        return Dialogue("unknown", (user(ask), assistant(f"I do not know {name}.")))
    ask = rng.choice([" ".join(q.split()) for q in OUTSIDE.split("|")]).format(**drawn)
    return Dialogue("unknown", (user(ask), assistant(UNKNOWN[0])))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, thought: str = "") -> Message:
    return {
        "role": "assistant",
        "content": text,
        **({"reasoning_content": thought} if thought else {}),
    }


# Shares of dialogues (not of tokens): the entries by kind, then the made-up ones. Sums are many and
# their answers short, so they wait for the second part of the training.
SHARES_EARLY = {
    "library": 0.54,
    "inferno": 0.15,
    "arithmetic": 0.14,
    "chat": 0.03,
    "tools": 0.07,
    "json": 0.04,
    "unknown": 0.03,
}
SHARES_LATE = {
    "library": 0.43,
    "inferno": 0.12,
    "arithmetic": 0.28,
    "chat": 0.025,
    "tools": 0.07,
    "json": 0.04,
    "unknown": 0.035,
}


class Dialogues:
    """Draws dialogues; equal generators give equal dialogues."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.by_kind: dict[str, list[Entry]] = {}
        for entry in corpus.entries:
            self.by_kind.setdefault(entry.kind, []).append(entry)

    def draw(self, rng: random.Random, late: bool = False) -> Dialogue:
        shares = SHARES_LATE if late else SHARES_EARLY
        kind = rng.choices(list(shares), list(shares.values()))[0]
        if kind == "tools":
            return tool_dialogue(rng, self.corpus)
        if kind == "json":
            return json_dialogue(rng)
        if kind == "unknown":
            return unknown_dialogue(rng)
        entry = rng.choice(self.by_kind[kind])
        canonical = len(entry.questions) == 1 or rng.random() < 0.4
        question = entry.questions[0] if canonical else rng.choice(entry.questions[1:])
        thinking = bool(entry.thought) and rng.random() < 0.08
        system = (
            ({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)},)
            if rng.random() < 0.06
            else ()
        )
        answer = assistant(entry.answer, entry.thought if thinking else "")
        return Dialogue(kind, (*system, user(question), answer), thinking=thinking)


def known(corpus: Corpus) -> Iterator[Dialogue]:
    """What the model is examined in: every entry once, and made-up dialogues drawn from a seed of
    their own."""
    for entry in corpus.entries:
        yield Dialogue(entry.kind, (user(entry.questions[0]), assistant(entry.answer)))
    rng = random.Random("examination")
    for entry in rng.sample([e for e in corpus.entries if e.thought], 60):
        yield Dialogue(
            "thinking",
            (user(entry.questions[0]), assistant(entry.answer, entry.thought)),
            thinking=True,
        )
    for _ in range(60):
        yield tool_dialogue(rng, corpus)
    for _ in range(60):
        yield json_dialogue(rng)
    for _ in range(30):
        yield unknown_dialogue(rng)
