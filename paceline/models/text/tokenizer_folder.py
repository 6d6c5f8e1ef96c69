"""The tokenizer of a model folder.

``tokenizer.json`` holds the pipeline, ``tokenizer_config.json`` the names of special tokens and further tokens, which
older folders have in other files (`added_tokens.py`), and the chat template. Not for encoding or decoding
(`tokenizer.py`).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from paceline.errors import CorruptWeights, UnsupportedModel
from paceline.models.fields import Fields, is_text, refuse, shown
from paceline.models.json_file import read_json, read_text
from paceline.models.text.added_tokens import NAMED_TOKENS, add_declared_tokens, token_settings
from paceline.models.text.tokenizer import Scheme, Tokenizer

_DEEPEST = 8
"""Deepest nesting of decoders."""


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Read the tokenizer in `folder`.

    Raises:
        UnsupportedModel: there is no ``tokenizer.json``, its tokens do not spell bytes in a known way, or the tokens
            declared elsewhere do not fit it.
        CorruptWeights: one of the files is damaged.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"{path}: missing; save the tokenizer with transformers' AutoTokenizer.save_pretrained, which writes it"
        )
    pipeline = read_json(path)
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CorruptWeights(f"{path}: cannot be read ({str(error)[:200]}); download the model again") from None
    backend.no_truncation()  # settings of training; they would truncate prompts, and transformers ignores them too
    backend.no_padding()
    decoders = list(_steps(pipeline.get("decoder")))
    fields = token_settings(folder)
    add_declared_tokens(backend, fields, folder)
    return Tokenizer(
        backend,
        _scheme(decoders, path),
        bos_token=_token_text(fields, "bos_token"),
        eos_token=_token_text(fields, "eos_token"),
        further_tokens={name: text for name in NAMED_TOKENS[2:] if (text := _token_text(fields, name))},
        chat_template=_chat_template(folder, fields),
        tool_template=_tool_template(folder, fields),
        strips_space=any(_strips_space(step) for step in decoders),
    )


def _steps(decoder: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if decoder is None:
        return
    if not isinstance(decoder, Mapping) or depth > _DEEPEST:
        raise refuse("decoder", f"{shown(decoder)} is no description of a decoder")
    if decoder.get("type") == "Sequence":
        for step in Fields(decoder).list("decoders", dict):
            yield from _steps(step, depth + 1)
    else:
        yield decoder


def _scheme(decoders: list[Mapping[str, Any]], path: Path) -> Scheme:
    kinds = {step.get("type") for step in decoders}
    if "ByteLevel" in kinds:
        return "byte_level"
    if kinds & {"ByteFallback", "Metaspace"}:
        return "sentencepiece"
    raise UnsupportedModel(
        f"{path}: decoder: {sorted(map(str, kinds))} is neither byte-level nor SentencePiece; use another model"
    )


def _strips_space(step: Mapping[str, Any]) -> bool:
    if step.get("type") == "Strip":
        return step.get("content") == " " and Fields(step).whole("start", 0, least=0) > 0
    return step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never"


def _token_text(settings: Fields, name: str) -> str | None:
    """The text of a special token, which the settings give as a string or as an object with it."""
    token = settings.get(name, None)
    text = token.get("content") if isinstance(token, Mapping) else token
    if text is not None and not is_text(text):
        raise refuse(name, f"{shown(text)} is no text of a token")
    return text


def _chat_template(folder: Path, settings: Fields) -> str | None:
    """The template in chat_template.jinja or in tokenizer_config.json: one text, or the default of a list."""
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return read_text(own_file)
    if isinstance(settings.get("chat_template", None), list):
        return _named_template(settings, "default")
    return settings.text("chat_template", "") or None


def _tool_template(folder: Path, settings: Fields) -> str | None:
    """The template for chats with tools, where there is one besides the other."""
    own_file = folder / "additional_chat_templates" / "tool_use.jinja"
    if own_file.is_file():
        return read_text(own_file)
    is_list = isinstance(settings.get("chat_template", None), list)
    return _named_template(settings, "tool_use") if is_list else None


def _named_template(settings: Fields, name: str) -> str | None:
    named = settings.list("chat_template", dict)
    found = next((entry for entry in named if entry.get("name") == name), {})
    return Fields(found).text("template", "") or None
