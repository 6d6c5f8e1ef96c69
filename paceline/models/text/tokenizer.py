"""`Tokenizer`: text to token ids and back, the same whether the vocabulary came from GGUF or from tokenizer.json.

Decoding works on bytes, so a stream of tokens and the whole sequence give the same text. Not for reading vocabulary
files (`gguf_vocabulary.py`, `tokenizer_folder.py`).
"""

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Literal, TypeVar

from tokenizers import Tokenizer as Backend

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.fields import Fields
from paceline.models.text.call_formats import HERMES, CallFormat, call_format
from paceline.models.text.chat_template import ChatTemplate, asks_for
from paceline.models.text.gguf_vocabulary import SENTENCEPIECE, backend_from_gguf, begins_with_space
from paceline.models.text.messages import thoughts_apart
from paceline.models.text.thought_tags import THINK, ThoughtTags, thought_tags

Scheme = Literal["byte_level", "sentencepiece"]
"""How a token's name spells its bytes: GPT-2's letters for bytes, or text with ``▁`` for a space and ``<0x0A>``."""

_LONG_TEXT = 4096
"""From this many characters on, encoding takes more than a few milliseconds."""
_MARK, _MARK_END = "\ue000", "\ue001"
"""Enclose the number that replaces a control token's name; private-use characters, which texts do not contain."""
_MARKED = re.compile(f"{_MARK}([0-9]{{1,6}}){_MARK_END}")
_Masked = TypeVar("_Masked", bound=object)
_TOLD_BY_TEMPLATE = ("speaks_harmony", "reads_tools", "call_format", "thought_tags", "hidden_token_ids")
"""Cached properties of `Tokenizer` that depend on the chat template."""
_META_SPACE = "▁"
_BYTE_NAME = re.compile("<0x[0-9A-Fa-f]{2}>")


def _letters_for_bytes() -> dict[str, int]:
    """GPT-2's byte alphabet: printable bytes stand for themselves, the others for code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF_LETTER = _letters_for_bytes()


class Tokenizer:
    """Encodes and decodes for one model.

    Args:
        backend: the `tokenizers` pipeline; its decoder is not used.
        scheme: how token names spell bytes.
        bos_token, eos_token: text of the tokens; None where the model has none.
        further_tokens: texts of other special tokens by the names that chat templates have for them (``pad_token``).
        chat_template: the template's source; None where the model has none.
        tool_template: the source of another one for chats with tools, where the model has one.
        strips_space: whether decoding a whole sequence removes one leading space, which encoding had added; an
            attribute too.
    """

    def __init__(self, backend: Backend, scheme: Scheme, *, bos_token: str | None = None, eos_token: str | None = None,
                 further_tokens: Mapping[str, str] | None = None, chat_template: str | None = None,
                 tool_template: str | None = None, strips_space: bool = False) -> None:  # fmt: skip
        self._backend = backend
        self._scheme: Scheme = scheme
        self.strips_space = strips_space
        added = backend.get_added_tokens_decoder()
        self._literal = {i: token.content.encode() for i, token in added.items()}
        self._special = frozenset(i for i, token in added.items() if token.special)
        self._bytes: dict[int, bytes] = {}
        self.bos_token_id = None if bos_token is None else backend.token_to_id(bos_token)
        eos_id = None if eos_token is None else backend.token_to_id(eos_token)
        self.eos_token_ids: tuple[int, ...] = () if eos_id is None else (eos_id,)
        self._template_source, self._tool_source = chat_template, tool_template or chat_template
        self._template_variables = {
            "bos_token": bos_token or "",
            "eos_token": eos_token or "",
            **(further_tokens or {}),
        }
        self._templates: dict[str, ChatTemplate] = {}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer inside a GGUF file. Raises UnsupportedModel or CorruptWeights (see `backend_from_gguf`)."""
        backend = backend_from_gguf(metadata)
        tokens = metadata["tokenizer.ggml.tokens"]
        is_sentencepiece = metadata["tokenizer.ggml.model"] in SENTENCEPIECE

        def named(key: str) -> str | None:
            number = Fields(metadata).optional_whole(f"tokenizer.ggml.{key}_token_id")
            return tokens[number] if number is not None and number < len(tokens) else None

        return cls(
            backend,
            "sentencepiece" if is_sentencepiece else "byte_level",
            bos_token=named("bos"),
            eos_token=named("eos"),
            chat_template=Fields(metadata).text("tokenizer.chat_template", "") or None,
            tool_template=Fields(metadata).text("tokenizer.chat_template.tool_use", "") or None,
            strips_space=is_sentencepiece and begins_with_space(metadata),
        )

    @cached_property
    def vocab_size(self) -> int:
        """Highest token id in use plus one; the model's embedding may have more rows, as padding."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def longest_token(self) -> int:
        """Most bytes of text that one token can stand for."""
        return max((len(name.encode()) for name in self._backend.get_vocab(with_added_tokens=True)), default=1)

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Ids of control tokens, which `decode` can skip."""
        return self._special

    @property
    def has_chat_template(self) -> bool:
        """Whether there is a chat template, the model's own or a given one."""
        return self._template_source is not None

    @property
    def chat_template_digest(self) -> str:
        """sha256 of the chat template's source; empty where there is none."""
        return hashlib.sha256(self._template_source.encode()).hexdigest() if self._template_source else ""

    @cached_property
    def reads_tools(self) -> bool:
        """Whether the chat template has a place for the definitions of tools."""
        return asks_for(self._tool_source or "", "tools")

    @cached_property
    def call_format(self) -> CallFormat:
        """How the model writes calls of tools."""
        if not self.reads_tools or self.speaks_harmony:
            return HERMES
        return call_format(self._tool_source or "", lambda name: self.token_id(name) is not None)

    @cached_property
    def hidden_token_ids(self) -> frozenset[int]:
        """Ids of control tokens that texts leave out: all but the tags of thoughts and of calls."""
        tags = (*self.call_format.tags, *(self.thought_tags.tokens if self.thought_tags else ()))
        return self._special - {self.token_id(tag) for tag in tags}

    @cached_property
    def thought_tags(self) -> ThoughtTags | None:
        """The tags around the model's reasoning before an answer; None where the chat template has none."""
        return THINK if self.speaks_harmony else thought_tags(self._template_source or "")

    @cached_property
    def speaks_harmony(self) -> bool:
        """Whether answers are messages on channels, as gpt-oss writes them; `harmony.py` tells them with such tags."""
        names = ("<|channel|>", "<|message|>", "<|return|>")
        return "<|channel|>" in (self._template_source or "") and all(
            self.control_id(name) is not None for name in names
        )

    def with_chat_template(self, source: str) -> "Tokenizer":
        """The same tokenizer with another chat template, which serves chats with tools too.

        Raises:
            InvalidParameter: the template does not compile.
        """
        other = copy(self)
        for name in _TOLD_BY_TEMPLATE:
            other.__dict__.pop(name, None)
        other._template_source = other._tool_source = source
        other._templates = {source: ChatTemplate(source, self._template_variables)}
        return other

    def control_id(self, name: str) -> int | None:
        """Id of the control token called `name`; None where there is none."""
        return next((i for i in self._special if self._literal[i] == name.encode()), None)

    def token_id(self, name: str) -> int | None:
        """Id of the token that the vocabulary spells `name`, control token or not; None where there is none."""
        return self._backend.token_to_id(name)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written in it are encoded as such.

        `add_special_tokens` adds what the model expects around a text (e.g. a BOS token); False for a rendered chat.
        """
        if len(text) < _LONG_TEXT:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids  # encoding a batch releases the GIL, encoding one text does not

    def masked(self, value: _Masked) -> _Masked:
        """`value`, a text or texts in lists and mappings, with the names of control tokens replaced by marks.

        `encode_masked` encodes marks as the plain text of those names.
        """
        if isinstance(value, str):
            return self._control.sub(lambda found: f"{_MARK}{self._names.index(found[0])}{_MARK_END}", value)
        if isinstance(value, Mapping):
            return {key: self.masked(each) for key, each in value.items()}  # type: ignore[return-value]
        if isinstance(value, Sequence):
            return [self.masked(each) for each in value]  # type: ignore[return-value]
        return value

    def encode_masked(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """As `encode`, but marks of `masked` become the plain text of control tokens, not the tokens themselves."""
        first, *rest = _MARKED.split(text)
        ids = self.encode(first, add_special_tokens)
        for number, after in zip(rest[::2], rest[1::2], strict=True):
            name = self._names[int(number)] if int(number) < len(self._names) else f"{_MARK}{number}{_MARK_END}"
            ids += self._literal_backend.encode(name, add_special_tokens=False).ids
            ids += self.encode(after, add_special_tokens=False) if after else []
        return ids

    @cached_property
    def _names(self) -> list[str]:
        """Names of the control tokens, long ones first."""
        return sorted({self._literal[i].decode() for i in self._special if self._literal[i]}, key=len, reverse=True)

    @cached_property
    def _control(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._names)) or r"(?!)")

    @cached_property
    def _literal_backend(self) -> Backend:
        """A backend that encodes the names of control tokens as plain text."""
        backend = Backend.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        return backend

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, which need not be whole UTF-8 characters; empty for padding ids."""
        if token_id in self._literal:
            return self._literal[token_id]
        if token_id not in self._bytes:
            self._bytes[token_id] = self._spell(self._backend.id_to_token(token_id) or "")
        return self._bytes[token_id]

    def decode(self, token_ids: Iterable[int], skip_special: bool = True, continuation: bool = False) -> str:
        """The text of `token_ids`; bytes that are not UTF-8 become U+FFFD.

        Control tokens are skipped, but for the tags that the model puts around thoughts and calls of tools.

        A `continuation` follows other text and keeps its leading space. Otherwise the space that encoding adds at the
        beginning of a text is removed.
        """
        skipped = self.hidden_token_ids if skip_special else frozenset()
        data = b"".join(self.token_bytes(i) for i in token_ids if i not in skipped)
        text = data.decode("utf-8", "replace")
        return text[1:] if self.strips_space and not continuation and text.startswith(" ") else text

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a chat in the model's template; `variables` as in `ChatTemplate.render`.

        Raises:
            InvalidParameter: the model has no chat template, or the messages do not fit it.
            UnsupportedModel: the model's own template does not compile.
        """
        source = self._tool_source if (variables or {}).get("tools") else self._template_source
        if source is None:
            remedy = "give it one (--chat-template, chat_template=...), or the prompt as plain text"
            raise InvalidParameter("messages", "the model has no chat template", remedy)
        if source not in self._templates:
            try:
                self._templates[source] = ChatTemplate(source, self._template_variables)
            except InvalidParameter as error:
                raise UnsupportedModel(str(error)) from None
        if self.speaks_harmony:  # its template does not know the tags
            messages = [thoughts_apart(message) for message in messages]
        return self._templates[source].render(messages, add_generation_prompt, variables)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a chat in the model's template with the assistant's turn opened; see `apply_chat_template`."""
        return self.encode(self.apply_chat_template(messages), add_special_tokens=False)

    def vocabulary_fingerprint(self) -> str:
        """A digest of the bytes of every token id; independent of padding ids and of pre-tokenisation."""
        digest = hashlib.sha256()
        for token_id in range(self.vocab_size):
            data = self.token_bytes(token_id)
            digest.update(len(data).to_bytes(4, "little") + data)
        return digest.hexdigest()

    def same_vocabulary(self, other: "Tokenizer") -> bool:
        """Whether every token id stands for the same bytes in both, so that one model can draft for the other."""
        if self._scheme == other._scheme:  # then equal names mean equal bytes, and are three times as fast to compare
            return self._backend.get_vocab(True) == other._backend.get_vocab(True)
        return self.vocabulary_fingerprint() == other.vocabulary_fingerprint()

    def files(self) -> dict[str, str]:
        """Name to content of the files from which `tokenizer_from_folder` and transformers load this tokenizer."""
        pipeline = json.loads(self._backend.to_str())
        pipeline["decoder"] = _decoder(self._scheme, self.strips_space)
        settings = {key: text for key, text in self._template_variables.items() if text}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        found = {"tokenizer.json": json.dumps(pipeline), "tokenizer_config.json": json.dumps(settings, indent=2)}
        return found | ({"chat_template.jinja": self._template_source} if self._template_source is not None else {})

    def _spell(self, name: str) -> bytes:
        if self._scheme == "byte_level":
            if all(letter in _BYTE_OF_LETTER for letter in name):
                return bytes(_BYTE_OF_LETTER[letter] for letter in name)
            return name.encode()
        if _BYTE_NAME.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        return name.replace(_META_SPACE, " ").encode()


def _decoder(scheme: Scheme, strips_space: bool) -> dict[str, Any]:
    """The ``decoder`` entry of a tokenizer.json for this scheme."""
    if scheme == "byte_level":
        return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _META_SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        "type": "Sequence",
        "decoders": [*steps, {"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strips_space else steps,
    }


class StreamDecoder:
    """Decodes a growing token sequence into whole characters.

    All pieces joined, `flush` included, are ``tokenizer.decode(ids, skip_special, continuation=True)``.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.hidden_token_ids if skip_special else frozenset()
        self._incomplete = b""

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character still lacks bytes."""
        if token_id in self._skipped:
            return ""
        data = self._incomplete + self._tokenizer.token_bytes(token_id)
        text, num_used = codecs.utf_8_decode(data, "replace")
        self._incomplete = data[num_used:]
        return text

    def flush(self) -> str:
        """The rest at the end of the sequence: U+FFFD for an incomplete character, else nothing."""
        rest, self._incomplete = self._incomplete, b""
        return rest.decode("utf-8", "replace")
