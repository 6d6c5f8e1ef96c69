"""Which values each field of a request may have: a `Limit` per kind of field, checked on arrival.

A limit returns the value in plain Python types or raises `InvalidParameter`, which names the field and the remedy.
Within these limits a request's logits stay finite, whatever the model emits, and its lists stay short. Not for limits
that need a model (vocabulary, length): the engine has those.
"""

import json
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from numbers import Integral, Real
from typing import Any, TypeGuard

from paceline.errors import InvalidParameter

Limit = Callable[[str, Any], Any]
"""Takes (field name, value given) and returns the value to keep. Raises InvalidParameter."""

_LARGEST_ID = 2**31 - 1
"""Token ids and counts of tokens fit into 32 bits."""
NO_LIMIT = _LARGEST_ID
"""`max_tokens` of a request that goes on until the model ends it or its context is full."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number in [low, high], or in (low, high] when `above` is set."""

    low: float
    high: float
    remedy: str
    above: bool = False

    def __call__(self, name: str, value: Any) -> float:
        number = _finite(value)
        if number is None:
            raise _refused(name, value, "a finite number", self.remedy)
        if not self.low <= number <= self.high or (self.above and number == self.low):
            bracket = "(" if self.above else "["
            raise _refused(name, value, f"in {bracket}{self.low:g}, {self.high:g}]", self.remedy)
        return number


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number in [low, high]; None too where `optional` is set. `less` is the remedy above `high`."""

    low: int
    high: int
    remedy: str
    optional: bool = False
    less: str = ""

    def __call__(self, name: str, value: Any) -> int | None:
        if value is None and self.optional:
            return None
        if not is_whole(value):
            remedy = "give an int, or leave it out" if self.optional else "give an int"
            raise _refused(name, value, "a whole number", remedy)
        if not self.low <= value <= self.high:
            remedy = self.less if self.less and value > self.high else self.remedy
            raise _refused(name, value, f"in [{self.low}, {self.high}]", remedy)
        return int(value)


@dataclass(frozen=True, slots=True)
class Instead:
    """As `limit`, with another spelling of one value."""

    spelling: int | None
    value: int
    limit: Limit

    def __call__(self, name: str, value: Any) -> Any:
        same = value == self.spelling and type(value) is type(self.spelling)
        return self.limit(name, self.value if same else value)


@dataclass(frozen=True, slots=True)
class Flag:
    """True or False."""

    def __call__(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise _refused(name, value, "True or False", "give a bool")
        return value


@dataclass(frozen=True, slots=True)
class Strings:
    """At most `most` non-empty strings of at most `longest` characters; one string is a list of one, None of none."""

    most: int
    longest: int

    def __call__(self, name: str, value: Any) -> tuple[str, ...]:
        strings = _listed(name, (value,) if isinstance(value, str) else value, self.most, "strings")
        for each in strings:
            if not isinstance(each, str):
                raise _refused(name, each, "a string", "give a list of strings")
            if not 1 <= len(each) <= self.longest:
                problem = f"1 to {self.longest} characters long"
                raise _refused(name, each, problem, "shorten it" if each else "remove the empty string")
            if any("\ud800" <= character <= "\udfff" for character in each):
                raise _refused(name, each, "text: it holds half a surrogate pair", "give valid Unicode")
        return strings


@dataclass(frozen=True, slots=True)
class TokenIds:
    """At most `most` token ids; None stands for none. With `optional`, None stays None and none are refused."""

    most: int
    optional: bool = False

    def __call__(self, name: str, value: Any) -> tuple[int, ...] | None:
        ids = self._ids(name, value)
        if self.optional and not ids:
            if value is None:
                return None
            raise InvalidParameter(name, "the list is empty", "give at least one id, or leave it out")
        return ids

    def _ids(self, name: str, value: Any) -> tuple[int, ...]:
        return tuple(_token_id(name, each) for each in _listed(name, value, self.most, "token ids"))


@dataclass(frozen=True, slots=True)
class Biases:
    """At most `most` token ids, each with a number in [-largest, largest]; None stands for none."""

    most: int
    largest: float

    def __call__(self, name: str, value: Any) -> dict[int, float]:
        if not isinstance(value, Mapping | None):
            raise _refused(name, value, "a mapping of token ids to numbers", "e.g. {17: -2.5}")
        number = Number(
            -self.largest, self.largest, f"give a number up to {self.largest:g}; to forbid a text use bad_words"
        )
        items = _listed(name, () if value is None else value.items(), self.most, "token ids")
        return {_token_id(name, token): number(name, bias) for token, bias in items}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def __call__(self, name: str, value: Any) -> str:
        if value not in self.words:
            raise _refused(name, value, "known", f"use one of {', '.join(self.words)}")
        return value


@dataclass(frozen=True, slots=True)
class Prediction:
    """A text of at most `longest` characters, or as many token ids; None stands for none."""

    longest: int

    def __call__(self, name: str, value: Any) -> str | tuple[int, ...]:
        if not isinstance(value, str):
            return TokenIds(self.longest)(name, value) or ()
        if len(value) > self.longest:
            raise InvalidParameter(name, f"{len(value)} characters", f"give at most {self.longest}")
        return value.encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class Drafting:
    """A bool, or a mapping of options for one request's drafts; None stands for True."""

    def __call__(self, name: str, value: Any) -> bool | dict[str, Any]:
        if value is None or isinstance(value, bool):
            return value is not False
        if not isinstance(value, Mapping):
            raise _refused(name, value, "a bool or a mapping", "give false, or e.g. {'num_draft_tokens': 4}")
        known = {
            key: limit(f"{name}.{key}", value[key]) for key, limit in _DRAFTING.items() if value.get(key) is not None
        }
        for key in value:
            if key not in _DRAFTING:
                raise InvalidParameter(
                    f"{name}.{key[:64] if isinstance(key, str) else _shown(key)}",
                    "is unknown",
                    f"use {', '.join(_DRAFTING)}",
                )
        return known


@dataclass(frozen=True, slots=True)
class Name:
    """A short string."""

    def __call__(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not 1 <= len(value) <= 64:
            raise _refused(name, value, "a name", "give a string")
        return value


GRAMMARS = ("json", "regex", "choice", "grammar", "structural_tag")
"""Kinds of `structured_outputs`."""
_MOST_GRAMMAR = 1 << 16
"""Most characters of a grammar; bounds the work that a malicious one can cause."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A mapping with one of `GRAMMARS`, kept as {kind: source}; None stands for none.

    Schemas and lists are kept as JSON texts; ``json_object`` becomes the schema of any object.
    """

    def __call__(self, name: str, value: Any) -> dict[str, str] | None:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise _refused(name, value, "a mapping", "give e.g. {'json': {'type': 'object'}}")
        given = {kind: source for kind, source in value.items() if source is not None and source is not False}
        if given == {"json_object": True}:
            given = {"json": {"type": "object"}}
        if len(given) != 1 or next(iter(given)) not in GRAMMARS:
            problem = f"{_shown(dict(given))} is not one of the kinds"
            raise InvalidParameter(name, problem, f"give exactly one of {', '.join(GRAMMARS)}, json_object")
        [(kind, source)] = given.items()
        return {kind: _grammar_text(f"{name}.{kind}", kind, source)}


class GrammarSource(str):
    """The source of a grammar that was checked, as one string: a list of choices is then its JSON text."""

    __slots__ = ()


def _grammar_text(name: str, kind: str, source: Any) -> GrammarSource:
    """The source of a grammar, as it is if it was checked before. Raises InvalidParameter."""
    if isinstance(source, GrammarSource):
        return source
    if kind == "choice":
        source = Strings(most=1024, longest=1024)(name, source)
        if not source:
            raise InvalidParameter(name, "the list is empty", "give at least one string")
    if kind in ("json", "choice", "structural_tag") and not isinstance(source, str):
        try:
            source = json.dumps(source, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidParameter(name, f"is no JSON ({str(error)[:80]})", "give plain JSON values") from None
    if not isinstance(source, str) or not source:
        raise _refused(name, source, "a text", "give the grammar's source")
    if len(source) > _MOST_GRAMMAR:
        raise InvalidParameter(name, f"{len(source)} characters", f"give at most {_MOST_GRAMMAR}")
    return GrammarSource(source)


_DRAFTING: dict[str, Limit] = {
    "method": Name(),
    "num_draft_tokens": Whole(0, 64, "use 0 to draft nothing"),
    "rule": Name(),
    "policy": OneOf(("auto", "fixed")),
}

_MAX_TOKENS = Whole(1, _LARGEST_ID, "ask for at least one token", less=f"give at most {_LARGEST_ID}")

LIMITS: dict[str, Limit] = {
    "n": Whole(1, 16, "ask for 1 to 16 samples, more in further requests"),
    "temperature": Number(0, 100, "use 0 for greedy decoding or e.g. 0.8 to sample"),
    "top_p": Number(0, 1, "use 1 to switch it off", above=True),
    "top_k": Instead(-1, 0, Whole(0, _LARGEST_ID, "use 0 to switch it off")),
    "min_p": Number(0, 1, "use 0 to switch it off"),
    "repetition_penalty": Number(0.01, 100, "use 1 to switch it off, e.g. 1.1 to discourage"),
    "presence_penalty": Number(-2, 2, "use 0 to switch it off"),
    "frequency_penalty": Number(-2, 2, "use 0 to switch it off"),
    "logit_bias": Biases(most=1024, largest=100),
    "bad_words": Strings(most=1024, longest=128),
    "allowed_token_ids": TokenIds(most=1 << 16, optional=True),
    "max_tokens": Instead(None, NO_LIMIT, _MAX_TOKENS),
    "min_tokens": Whole(0, _LARGEST_ID, "use 0 to switch it off"),
    "seed": Whole(-(2**63), 2**64 - 1, "give a seed of 64 bits, or leave it out", optional=True),
    "stop": Strings(most=16, longest=128),
    "include_stop_str_in_output": Flag(),
    "stop_token_ids": TokenIds(most=1024),
    "ignore_eos": Flag(),
    "logprobs": Whole(0, 20, "ask for 0 to 20 alternatives", optional=True),
    "prompt_logprobs": Whole(0, 20, "ask for 0 to 20 alternatives", optional=True),
    "logprobs_mode": OneOf(("raw", "processed")),
    "speculative": Drafting(),
    "structured_outputs": Grammar(),
    "prediction": Prediction(longest=1 << 20),
    "n_indent": Whole(0, _LARGEST_ID, "use 0 to switch it off"),
    "t_max_predict_ms": Whole(0, _LARGEST_ID, "use 0 to switch it off"),
}
"""Every field of `SamplingParams`; the numbers are OpenAI's and vLLM's where these have them."""


def is_whole(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer of Python or of another library, but not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _finite(value: object) -> float | None:
    """`value` as a float; None when it is not a finite real number. A bool is not one."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _listed(name: str, value: Any, most: int, what: str) -> tuple[Any, ...]:
    """`value` as a tuple, empty for None. Raises InvalidParameter for more than `most` entries.

    Reads at most `most` + 1 entries, so that endless iterators end.
    """
    if value is None:
        return ()
    if not isinstance(value, Iterable):
        raise _refused(name, value, f"made of {what}", "give a list")
    entries = tuple(islice(value, most + 1))
    if len(entries) > most:
        raise InvalidParameter(name, f"more than {most} {what}", f"give at most {most}")
    return entries


def _token_id(name: str, value: Any) -> int:
    if not is_whole(value) or not 0 <= value <= _LARGEST_ID:
        raise _refused(name, value, "a token id", "give an int from 0 up")
    return int(value)


def _refused(name: str, value: Any, wanted: str, remedy: str) -> InvalidParameter:
    return InvalidParameter(name, f"{_shown(value)} is not {wanted}", remedy)


def _shown(value: Any) -> str:
    """A short form of `value`, however large it is."""
    try:
        return _REPR.repr(value)
    except ValueError:  # Python prints no integer of more than some thousand digits
        return f"a {type(value).__name__} of thousands of digits"


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of a JSON object without repeated keys, for `json.loads(..., object_pairs_hook=unrepeated)`.

    Raises:
        ValueError: a key is given twice; `json` alone silently keeps the last value.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return values
