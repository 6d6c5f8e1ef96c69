"""Strict reading of a head's configuration: no setting that could change the computation is ignored.

Every key is read by the layout, known to be harmless, or reported to the user. An unknown key that names a norm, bias,
scale or rotary setting and is switched on is an error. Not for tensors (`layouts/base.py`).
"""

from collections.abc import Collection, Mapping
from typing import Any

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.fields import is_whole

_RISKY = ("norm", "bias", "scale", "scaling", "rope", "rotary")
_OFF = (None, False, 0, 0.0, 1.0, "", (), [])
_HARMLESS = frozenset({
    "_name_or_path", "architectures", "attention_dropout", "auto_map", "bad_words_ids", "bos_token_id", "dtype",
    "eos_token_id", "id2label", "initializer_range", "label2id", "license", "pad_token_id", "pretraining_tp",
    "torch_dtype", "transformers_version", "use_cache", "_attn_implementation", "output_attentions",
    "output_hidden_states", "return_dict", "chunk_size_feed_forward", "is_encoder_decoder", "problem_type", "version",
})  # fmt: skip
_MISSING = object()


class Settings:
    """The key-value pairs of a ``config.json``, which keeps track of the keys that were read.

    Args:
        values: the file's content.
        source: names the file in errors.
    """

    def __init__(self, values: Mapping[str, Any], source: object) -> None:
        self.values = dict(values)
        self.source = source
        self._seen: set[str] = set()

    def take(self, name: str, default: Any = _MISSING) -> Any:
        """The value of `name`, or `default` where it is missing or null.

        Raises:
            InvalidParameter: it is missing and has no default.
        """
        self._seen.add(name)
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _MISSING:
            raise self.wrong(name, "is missing", "get the complete file from whoever published the head")
        return default

    def count(self, name: str, default: Any = _MISSING, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self.take(name, default)
        if not is_whole(value) or value < least:
            raise self.wrong(name, f"{value!r} is not a whole number from {least} up", "correct the config")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, f"{value!r} is neither true nor false", "correct the config")
        return value

    def among(self, name: str, choices: Collection[str], default: Any = _MISSING) -> str:
        """One of `choices`."""
        value = self.take(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(name, f"{value!r} is not read", f"use one of {', '.join(choices)}")
        return value

    def objects(self, name: str) -> "list[Settings]":
        """The objects in the list under `name`, empty where there is none."""
        values = self.take(name, [])
        if not isinstance(values, list) or not all(isinstance(one, Mapping) for one in values):
            raise self.wrong(name, f"{values!r} is no list of objects", "correct the config")
        return [Settings(one, f"{self.source}: {name}") for one in values]

    def inner(self, name: str) -> "Settings":
        """The object under `name`, empty where there is none; the caller must call its `finish` as well."""
        value = self.take(name, {})
        if not isinstance(value, Mapping):
            raise self.wrong(name, "is no object", "correct the config")
        return Settings(value, f"{self.source}: {name}")

    def skip(self, *names: str) -> None:
        """Mark keys as read that are not needed."""
        self._seen.update(names)

    def finish(self) -> tuple[str, ...]:
        """A sentence on the keys that were not read, if any.

        Raises:
            UnsupportedModel: one of them could change what the head computes.
        """
        left = [name for name in self.values if name not in self._seen | _HARMLESS]
        for name in left:
            if any(word in name.lower() for word in _RISKY) and self.values[name] not in _OFF:
                raise UnsupportedModel(
                    f"{self.source}: {name}={self.values[name]!r} is not implemented and would change what the head "
                    "computes; use a head without it"
                )
        return (f"settings of {self.source} left aside: {', '.join(sorted(left))}",) if left else ()

    def wrong(self, name: str, problem: str, remedy: str) -> InvalidParameter:
        """An error about `name` in this file."""
        return InvalidParameter(f"{self.source}: {name}", problem, remedy)
