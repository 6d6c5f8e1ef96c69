"""Prompts for measurements: the user's files, public data sets, and a few that are built in.

A record of a .jsonl file is {"prompt": ...}, {"turns": [...]}, {"messages": [...]} or {"text": ...}; `category` names
its family, and `answer` (or `output`, `response`, `completion`) holds a model's answer. Public sets are read from a
path and not shipped. For long contexts, a long text can be cut into prompts.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidParameter, first_line

if TYPE_CHECKING:
    from paceline.engine.llm import LLM

CHAT = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})
"""MT-Bench's categories, which Spec-Bench counts as one family."""
BUILTIN = "builtin"
UNNAMED = "no category"
"""The family of prompts that name none."""
_LAYOUTS = ("spec-bench", "speed-bench")
_LONG = "long:"
_STRETCHES = 6
"""Default number of prompts cut from a long text, per length."""
_ANSWERS = ("answer", "output", "response", "completion")
_SHOWN = 40
"""Characters that tell a prompt from others in an error."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Attributes:
        text: what the user says.
        family: kind of task.
        answer: a model's answer to it; None if unknown.
    """

    text: str
    family: str = UNNAMED
    answer: str | None = None


def load_prompts(
    source: str, families: Sequence[str] = (), per_family: int | None = None, all_turns: bool = False
) -> list[Prompt]:
    """Prompts of `source`, with the families interleaved so that every prefix of the list is balanced.

    Args:
        source: ``builtin``, a .jsonl or .txt file, ``spec-bench:PATH`` / ``speed-bench:PATH``, or
            ``long:PATH@8000,32000``: a text cut into prompts of these lengths in characters, a family per length.
        families: those to take; all when empty.
        per_family: largest number of prompts of each.
        all_turns: also take later user turns of a conversation, as prompts of their own without the earlier turns.

    Raises:
        InvalidParameter: the file cannot be read, a line holds no prompt, nothing is left, or `per_family` is below 1.
    """
    if per_family is not None and per_family < 1:
        raise InvalidParameter("per_family", f"{per_family} is less than 1", "leave it out for all of them")
    if source.startswith(_LONG):
        prompts = _stretches(source.removeprefix(_LONG), per_family or _STRETCHES)
    else:
        prompts = list(_BUILTIN) if source == BUILTIN else read_file(*_layout(source), all_turns)
    if not prompts:
        raise InvalidParameter("prompts", f"there is none in {source}", "write one a line, or a record for each")
    groups: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        if not families or prompt.family in families:
            groups[prompt.family].append(prompt)
    if not groups:
        known = ", ".join(sorted({prompt.family for prompt in prompts}))
        raise InvalidParameter("families", f"none of {list(families)} is in {source}", f"it has {known}")
    kept = [group[:per_family] for group in groups.values()]
    return [prompt for turn in zip_longest(*kept) for prompt in turn if prompt is not None]


def ids_of(llm: "LLM", texts: Iterable[str], raw: bool = False) -> list[list[int]]:
    """Token ids of each text, as a user's message or as it is when `raw`.

    Raises:
        InvalidParameter: the model cannot read one of them; the error shows its beginning.
    """
    found: list[list[int]] = []
    for text in texts:
        try:
            found.append(llm.user_prompt(text, raw))
        except InvalidParameter as error:
            raise InvalidParameter("prompts", f"{text[:_SHOWN]!r}...: {error.problem}", error.remedy) from None
        if len(found[-1]) >= llm.max_model_len:
            problem = f"{text[:_SHOWN]!r}... has {len(found[-1])} tokens, the model reads {llm.max_model_len}"
            raise InvalidParameter("prompts", problem, "shorten it, or leave it out")
    return found


def _layout(source: str) -> tuple[Path, bool]:
    """(path of a source, whether to merge MT-Bench's categories into one family)."""
    name, colon, path = source.partition(":")
    return (Path(path), name == "spec-bench") if colon and name in _LAYOUTS else (Path(source), False)


def _stretches(source: str, count: int) -> list[Prompt]:
    """`count` consecutive pieces of the text for each length."""
    name, _, lengths = source.rpartition("@")
    sizes = [int(each) for each in lengths.split(",") if each.strip().isdigit() and int(each)]
    if not name or len(sizes) != len(lengths.split(",")):
        remedy = f"write {_LONG}novel.txt@8000,32000: numbers of characters"
        raise InvalidParameter("prompts", f"{source!r} does not say how long", remedy)
    text = _read(Path(name))
    if len(text) < count * max(sizes):
        problem = f"{name} has {len(text)} characters, too few for {count} x {max(sizes)}"
        raise InvalidParameter("prompts", problem, "give a longer text, or a smaller --per-family")
    return [
        Prompt(text[number * size : (number + 1) * size], f"{size} characters")
        for size in sizes
        for number in range(count)
    ]


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8-sig")  # Windows' editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        remedy = "name a .jsonl or .txt file in UTF-8, or builtin"
        raise InvalidParameter("prompts", f"{path} cannot be read ({error})", remedy) from None


def read_file(path: Path, merge_chat: bool = False, all_turns: bool = False) -> list[Prompt]:
    """The prompts of a .jsonl file, a record on each line, or of a text, one on each line; in order.

    Raises:
        InvalidParameter: it cannot be read, or a line holds no prompt.
    """
    lines = _read(path).split("\n")  # not splitlines: JSON strings may contain other line separators (U+2028)
    if path.suffix == ".json":
        raise InvalidParameter("prompts", f"{path} is one JSON value", "write a record on each line of a .jsonl file")
    found: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and path.suffix != ".jsonl":
            found.append(Prompt(line))
        elif line.strip():
            found += _of_record(line, f"{path}, line {number}", merge_chat, all_turns)
    return found


def _of_record(line: str, place: str, merge_chat: bool, all_turns: bool) -> list[Prompt]:
    remedy = 'write {"prompt": ...}, {"turns": [...]} or {"messages": [...]} on each line'
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("prompts", f"{place} is no JSON ({first_line(error)})", remedy) from None
    try:
        texts = _texts(record)
        family = str(record.get("category") or record.get("family") or UNNAMED)
        answer = next((record[name] for name in _ANSWERS if isinstance(record.get(name), str)), None)
        "".join([*texts, answer or ""]).encode()
    except UnicodeEncodeError:
        raise InvalidParameter("prompts", f"{place} holds half a surrogate pair", "give valid Unicode") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise InvalidParameter("prompts", f"{place} holds no prompt", remedy) from None
    family = "conversation" if merge_chat and family in CHAT else family
    return [
        Prompt(text, family, answer if not turn else None)
        for turn, text in enumerate(texts[: None if all_turns else 1])
    ]


def _texts(record: Mapping[str, Any]) -> list[str]:
    """The user messages of a record, in order."""
    if "turns" in record:
        texts = record["turns"]
    elif "messages" in record:
        texts = [message["content"] for message in record["messages"] if message["role"] == "user"]
    else:
        texts = [record["prompt"] if "prompt" in record else record["text"]]
    if not texts or not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError
    return texts


_PASSAGE = (
    "The canal was dug between 1811 and 1824 to carry coal from the hills to the harbour. It has nineteen locks, each "
    "wide enough for one boat, and a reservoir above the highest of them keeps it full in summer. When the railway "
    "opened in 1852 the tolls fell by half within three years, and the company sold the canal to the railway in 1861. "
    "Today the towpath is a footpath, two of the locks have been restored, and volunteers run a small museum in the "
    "old toll house from April to October."
)
_CODE = (
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
    "        self.items.append(item)\n\n    def pop(self):\n        return self.items.pop()\n"
)
_TABLE = "name,city,year\nAnna,Oslo,1984\nBoris,Prague,1979\nChen,Lyon,1990\nDaria,Porto,1988\n"
_BUILTIN = tuple(
    Prompt(text, family)
    for family, texts in {
        "copying": (
            f"Repeat this text word for word:\n\n{_PASSAGE}",
            f"Write this table again, with every name in capital letters:\n\n{_TABLE}",
            f"Correct the spelling of this text and change nothing else:\n\n{_PASSAGE.replace('the', 'teh')}",
            f"Turn each line of this table into one sentence:\n\n{_TABLE}",
            f"Copy every sentence of this text that names a year:\n\n{_PASSAGE}",
            "Count from 1 to 60, one number on each line.",
        ),
        "code": (
            f"Add a method peek to this class and print the whole class:\n\n{_CODE}",
            f"Add docstrings to this class and print the whole class:\n\n{_CODE}",
            f"Rewrite this class as a queue:\n\n{_CODE}",
            "Write a Python function that tells whether a number is prime, and three tests for it.",
            "Write a Python function that merges two sorted lists.",
            "Write an HTML page with a table of the planets and their distances from the sun.",
        ),
        "reading": (
            f"Summarise this text in two sentences:\n\n{_PASSAGE}",
            f"When was the canal sold, and to whom? Answer from this text:\n\n{_PASSAGE}",
            f"List the years in this text and what happened in each:\n\n{_PASSAGE}",
            f"Write three questions about this text, with their answers:\n\n{_PASSAGE}",
            f"Explain to a child what this text is about:\n\n{_PASSAGE}",
            f"Which facts of this text would you check, and why?\n\n{_PASSAGE}",
        ),
        "free": (
            "Explain in a few sentences why the sky is blue.",
            "Write a short story about a lighthouse keeper who finds a letter.",
            "What should one think about before adopting a dog?",
            "Compare travelling by train and by plane.",
            "Describe how bread is baked, step by step.",
            "Write a friendly mail that declines an invitation.",
        ),
    }.items()
    for text in texts
)
