"""The origin of training texts, for the model card and for later commands that use the same texts.

It is stored with every shard (`shards.py`). Not for the texts themselves (`conversations.py`).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

OWN, GIVEN, ANSWERED = "written by the target from its chat template", "given", "given with the answers"
SERVED, ORDINARY, UNTOLD = "served", "ordinary text", "of an origin that was not kept"
"""Origins of prompts (`Origin.prompts`)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a text.

    Attributes:
        prompts: origin of its prompt, one of the names above.
        seed: of prompts and answers; None for texts that were not generated for training.
        answer_tokens: largest number of tokens of an answer; None as for `seed`.
    """

    prompts: str = UNTOLD
    seed: int | None = None
    answer_tokens: int | None = None

    def to_json(self) -> str:
        """The JSON form that shards store."""
        return json.dumps(asdict(self))


NOT_KEPT = Origin()
"""Origin of texts in shards that were written before origins were stored."""


def read_origin(text: str) -> Origin:
    """The origin from the JSON of `Origin.to_json`. Raises ValueError for anything else."""
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
    """Number of texts of each origin, the most frequent first: "200 given, 64 served"."""
    counts = Counter(one.prompts for one in origins)
    return ", ".join(f"{count} {prompts}" for prompts, count in counts.most_common()) or "none"


def unheeded(origins: Iterable[Origin], seed: int, answer_tokens: int) -> Mapping[str, int]:
    """The options among `max_tokens` and `seed` that no generated text was written with, by name.

    Empty where no text was generated for training.
    """
    written = [one for one in origins if one.seed is not None]
    if not written:
        return MappingProxyType({})
    found = {}
    if all(one.answer_tokens != answer_tokens for one in written):
        found["max_tokens"] = answer_tokens
    if all(one.seed != seed for one in written):
        found["seed"] = seed
    return found
