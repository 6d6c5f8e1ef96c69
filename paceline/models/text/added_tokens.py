"""Tokens that a folder declares beside tokenizer.json, added to its pipeline as transformers adds them.

They stand in ``tokenizer_config.json``: under ``added_tokens_decoder`` (ids to tokens), as special tokens by name
(``pad_token``), and in the list ``extra_special_tokens``, formerly ``additional_special_tokens``. Folders that older
versions wrote have ``added_tokens.json`` (texts to ids) instead of the first, and may have the others in
``special_tokens_map.json``. Not for the tokens in tokenizer.json.
"""

from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from paceline.models.fields import LARGEST, Fields, is_text, is_whole, refuse, shown
from paceline.models.json_file import read_json

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Names of special tokens, in the order in which transformers adds those that the vocabulary lacks."""
_LISTS = ("extra_special_tokens", "additional_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def token_settings(folder: Path) -> Fields:
    """The content of tokenizer_config.json, in older folders with the special tokens of special_tokens_map.json.

    As in transformers, the latter is read only if the former lacks ``added_tokens_decoder`` (before version 4.34). Its
    tokens then replace those of the same name, and its lists go on those of the former.

    Raises:
        CorruptWeights: one of the files cannot be read.
    """
    path, older = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    settings = read_json(path) if path.is_file() else {}
    if "added_tokens_decoder" in settings or not older.is_file():
        return Fields(settings)
    told = read_json(older)
    named = {name: value for name, value in told.items() if name.endswith("_token")}
    lists = {name: _joined(settings.get(name), told[name]) for name in _LISTS if name in told}
    return Fields({**settings, **named, **lists})


def _joined(first: Any, second: Any) -> Any:
    """A list of special tokens with those of a second one that it lacks."""
    if not isinstance(second, list):
        return second
    special = [{**token, "special": True} if isinstance(token, Mapping) else token for token in second]
    first = first if isinstance(first, list) else []
    return [*first, *(token for token in special if token not in first)]


def add_declared_tokens(backend: Backend, settings: Fields, folder: Path) -> None:
    """Add the tokens that `settings` (see `token_settings`) and `folder` declare.

    Raises:
        UnsupportedModel: naming the field whose value is no token, or whose id belongs to another token.
        CorruptWeights: added_tokens.json cannot be read.
    """
    named = dict(_named(settings))
    extra = list(_extra(settings))
    special = {token.content for token in named.values()}
    if "added_tokens_decoder" in settings:
        field, declared = "added_tokens_decoder", _numbered(settings)
    else:
        field, declared = "added_tokens.json", _numbered_before(folder, special | {token.content for token in extra})
    for token in (*declared.values(), *named.values()):
        token.special = token.special or token.content in special
    backend.add_tokens([token for _, token in sorted(declared.items())])
    for token_id, token in declared.items():
        found = backend.token_to_id(token.content)
        if found != token_id:
            raise refuse(field, f"{shown(token.content)} has the id {token_id} there, and {found} after tokenizer.json")
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_tokens([token for token in (*named.values(), *extra) if token.content not in known])


def _numbered(settings: Fields) -> dict[int, AddedToken]:
    """The tokens of ``added_tokens_decoder`` by id."""
    name, found = "added_tokens_decoder", {}
    for key, value in settings.inner(name).items():
        is_id = key.isascii() and key.isdigit() and len(key) <= len(str(LARGEST)) and int(key) <= LARGEST
        if not is_id or not isinstance(value, Mapping):
            raise refuse(name, f"{shown(key)}: {shown(value)} is no token by its id, a whole number up to {LARGEST}")
        found[int(key)] = _token(f"{name}.{key}", value)
    return found


def _numbered_before(folder: Path, special: Set[str]) -> dict[int, AddedToken]:
    """The tokens of ``added_tokens.json`` by id, of which those in `special` are special; none where it is missing."""
    name, found = "added_tokens.json", {}
    for text, token_id in (read_json(folder / name) if (folder / name).is_file() else {}).items():
        if not is_whole(token_id) or not 0 <= token_id <= LARGEST or token_id in found:
            raise refuse(name, f"{shown(text)}: {shown(token_id)} is no id of its own, a whole number up to {LARGEST}")
        flags = {"special": text in special, "normalized": text not in special}
        found[token_id] = _token(name, {"content": text, **flags})
    return found


def _named(settings: Fields) -> Iterator[tuple[str, AddedToken]]:
    """(name, token) of special tokens with names: transformers' own first, then those of the model."""
    for name in NAMED_TOKENS:
        if name in settings:
            yield name, _token(name, settings.get(name))
    own = [(name, value) for name, value in settings.items() if name.endswith("_token") and name not in NAMED_TOKENS]
    for name, value in sorted(own, key=lambda pair: isinstance(pair[1], str)):  # objects come before texts
        if isinstance(value, (str, Mapping)):  # others are settings, such as add_bos_token
            yield name, _token(name, value)
    field, values = _extra_field(settings)
    if isinstance(values, Mapping):
        yield from ((name, _token(f"{field}.{name}", value)) for name, value in values.items())


def _extra(settings: Fields) -> Iterator[AddedToken]:
    """Special tokens without names."""
    field, values = _extra_field(settings)
    if not isinstance(values, Mapping):
        yield from (_token(field, value) for value in settings.list(field, (str, dict)))


def _extra_field(settings: Fields) -> tuple[str, Any]:
    """The field with further special tokens, which has two names, and its value."""
    name = "extra_special_tokens" if settings.get("extra_special_tokens", None) else "additional_special_tokens"
    return name, settings.get(name, None)


def _token(field: str, value: Any) -> AddedToken:
    """The token that `value` describes: a text, which is special, or an object with its content and flags."""
    fields = Fields(value if isinstance(value, Mapping) else {"content": value, "special": True})
    content = fields.get("content", None)
    if not is_text(content):
        raise refuse(field, f"{shown(content)} is no text of a token")
    return AddedToken(content, **{flag: fields.flag(flag, False) for flag in _FLAGS if flag in fields})
