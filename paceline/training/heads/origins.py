"""How the texts that are learnt from came about: what a card says of them, and what a later command must know.

Kept with every shard (`shards.py`). Not for the texts themselves (`conversations.py`).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

OWN, GIVEN, ANSWERED = "written by the target from its chat template", "given", "given with the answers"
SERVED, ORDINARY, UNTOLD = "served", "ordinary text", "of an origin that was not kept"
"""Whose prompts they are."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Of a text.

    Attributes:
        prompts: whose they are, a name from above.
        seed: of prompts and answers; None for texts that were not written on purpose.
        answer_tokens: most of an answer; None as for `seed`.
    """

    prompts: str = UNTOLD
    seed: int | None = None
    answer_tokens: int | None = None

    def to_json(self) -> str:
        """As a shard keeps it."""
        return json.dumps(asdict(self))


NOT_KEPT = Origin()
"""Of texts in folders that are older than this entry."""


def read_origin(text: str) -> Origin:
    """What `Origin.to_json` wrote. Raises ValueError for anything else."""
    values = json.loads(text)
    if not isinstance(values, dict) or not isinstance(values.get("prompts"), str):
        raise ValueError("the origin of its texts is not one")
    return Origin(values["prompts"], _number(values, "seed"), _number(values, "answer_tokens"))


def _number(values: Mapping[str, Any], name: str) -> int | None:
    found = values.get(name)
    if found is None or type(found) is int:
        return found
    raise ValueError(f"{name} of its texts is not a whole number")


def counted(origins: Iterable[Origin]) -> str:
    """How many texts came about in which way, most first: "200 given, 64 served"."""
    counts = Counter(one.prompts for one in origins)
    return ", ".join(f"{count} {prompts}" for prompts, count in counts.most_common()) or "none"


def unheeded(origins: Iterable[Origin], seed: int, answer_tokens: int) -> Mapping[str, int]:
    """The wishes that no text which was written on purpose was written by; none where there is no such text."""
    written = [one for one in origins if one.seed is not None]
    if not written:
        return MappingProxyType({})
    found = {}
    if all(one.answer_tokens != answer_tokens for one in written):
        found["max_tokens"] = answer_tokens
    if all(one.seed != seed for one in written):
        found["seed"] = seed
    return found
