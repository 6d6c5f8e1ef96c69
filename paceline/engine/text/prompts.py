"""`Prompts`: from what users give, texts, conversations and token ids, to the token ids of a request.

Not for what the chat template renders (`models/text/chat_template.py`) or for requests that wait or run.
"""

import reprlib
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from operator import index
from typing import Any

from paceline.errors import InvalidParameter, PromptTooLong
from paceline.models.text.infill import Infill, steps_for
from paceline.models.text.messages import check_continued, check_variables, known_role, plain_messages
from paceline.models.text.tokenizer import Tokenizer
from paceline.models.text.tools import checked_tools, explained, written_calls
from paceline.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Gap:
    """What stands before and after the text that a model is to write; see `Infill.prompt`.

    Attributes:
        files: (name, text) of other files of the project.
        keeps_free: tokens of the context, at most half of it, that are left to the answer: a prompt that is longer is
            cut. None to refuse it.
    """

    before: str
    after: str
    files: tuple[tuple[str, str], ...] = ()
    keeps_free: int | None = None

    def __len__(self) -> int:
        """Characters."""
        return sum(map(len, self.texts))

    @property
    def texts(self) -> list[str]:
        """All that the prompt is made of."""
        return [self.before, self.after, *(each for file in self.files for each in file)]

    def shortened(self, most: int) -> "Gap":
        """With at most `most` bytes before and after the gap, those next to it, and without files that have more."""
        before, after = self.before.encode(), self.after.encode()[:most]
        before = before[steps_for(len(before) - most, most) :]
        files = tuple((name, text) for name, text in self.files if len(name.encode()) + len(text.encode()) < most)
        return replace(self, before=before.decode(errors="ignore"), after=after.decode(errors="ignore"), files=files)


Prompt = str | Sequence[int] | Mapping[str, Any] | Gap
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompts:
    """Makes token ids with a model's tokenizer.

    Attributes:
        max_model_len: most tokens of a request, which bound the bytes of a text.
        parse_special_tokens: whether the names of control tokens in a text are these tokens.
    """

    tokenizer: Tokenizer
    max_model_len: int
    parse_special_tokens: bool

    def of_chat(
        self, messages: Sequence[Message], template: Mapping[str, Any] | None = None, *,
        add_generation_prompt: bool = True, continue_final_message: bool = False,
    ) -> list[int]:  # fmt: skip
        """See `LLM.chat_prompt`."""
        messages = self._told(messages, (template or {}).get("tools"))
        if continue_final_message:
            check_continued(messages[-1])
        self._check_size("".join(one["content"] for one in messages))
        if not self.parse_special_tokens:
            messages = self.tokenizer.masked(messages)
        mark = uuid.uuid4().hex if continue_final_message else ""
        marked = _with_end(messages, mark) if mark else messages
        text = self.tokenizer.apply_chat_template(marked, add_generation_prompt and not mark, variables=template)
        if mark and mark not in text:
            problem = "the chat template does not write the text of the final message"
            raise InvalidParameter("continue_final_message", problem, "leave it out")
        if mark:
            text = text.rpartition(mark)[0]
        return self._encode(text, add_special_tokens=False, masked=True)

    def of_chats(
        self, conversations: Sequence[Sequence[Message]], template: Mapping[str, Any], **ending: bool
    ) -> list[list[int]]:
        """`of_chat` for each; an error names the conversation where there are several."""
        found: list[list[int]] = []
        for number, messages in enumerate(conversations):
            with named(number, len(conversations), "conversations"):
                found.append(self.of_chat(messages, template, **ending))
        return found

    def with_template(self, source: str | None) -> "Prompts":
        """The same with another chat template; None leaves the model's own.

        Raises:
            InvalidParameter: it is no template.
        """
        if source is None:
            return self
        if not isinstance(source, str) or "{" not in source:
            remedy = "give the text of one; LLM(chat_template=...) takes the name of a file too"
            raise InvalidParameter("chat_template", f"{reprlib.repr(source)} is no Jinja template", remedy)
        return replace(self, tokenizer=self.tokenizer.with_chat_template(source))

    def _told(self, messages: Sequence[Message], tools: Any) -> Sequence[Message]:
        """The messages with known roles; tools and calls are text where the chat template has no place for them."""
        found: Sequence[Message] = [
            message | {"role": known_role(f"messages[{number}]", message["role"])}
            for number, message in enumerate(plain_messages(messages))
        ]
        if not (tools or any(message.get("tool_calls") for message in found)) or self.tokenizer.reads_tools:
            return found
        found = written_calls(found)
        return explained(found, checked_tools(tools)) if tools else found

    def of_user(self, text: str, raw: bool = False) -> list[int]:
        """See `LLM.user_prompt`."""
        if raw or not self.tokenizer.has_chat_template:
            return self.token_ids(text)
        return self.of_chat([{"role": "user", "content": text}])

    def token_ids(self, prompt: Prompt, add_special_tokens: bool = True) -> list[int]:
        """See `LLM.token_ids_of`."""
        plain = plain_prompt(prompt)
        if isinstance(plain, Gap):
            return self._of_gap(plain, add_special_tokens)
        try:
            is_text = isinstance(plain, str)
            if isinstance(plain, bytes | bytearray | Set) or (not is_text and any(map(_is_bool, plain))):
                raise TypeError
            token_ids = self._encode(plain, add_special_tokens) if is_text else [index(i) for i in plain]
        except TypeError:
            problem = f"{reprlib.repr(plain)} is neither a text nor token ids"
            raise InvalidParameter("prompt", problem, "give a str or a list of ints") from None
        if not token_ids or (is_text and not plain):
            raise InvalidParameter("prompt", "is empty", "give at least one character or token")
        return token_ids

    def params(self, prompt: Prompt, params: SamplingParams) -> SamplingParams:
        """See `LLM.params_for`."""
        if not isinstance(plain_prompt(prompt), Gap) or params.ignore_eos:
            return params
        ends = (*params.stop_token_ids, *Infill.of(self.tokenizer).ends)
        return replace(params, stop_token_ids=tuple(dict.fromkeys(ends)))

    def _of_gap(self, gap: Gap, add_special_tokens: bool) -> list[int]:
        around = self.tokenizer.encode("") if add_special_tokens else []
        first = [token_id for token_id in around if token_id not in self.tokenizer.eos_token_ids]
        most = None
        if gap.keeps_free is None:
            self._check_size(gap.after, "suffix")
            self._check_size(gap.before + gap.after)
            self._check_size("".join(gap.texts[2:]), "files")
        else:
            most = self.max_model_len - min(max(gap.keeps_free, 1), self.max_model_len // 2) - len(first)
            gap = gap.shortened(self.max_model_len * self.tokenizer.longest_token)
        infill = Infill.of(self.tokenizer)
        return [*first, *infill.prompt(gap.before, gap.after, self._plain, gap.files, most)]

    def _plain(self, text: str) -> list[int]:
        """Tokenise a text in which the names of control tokens stand for nothing else, as in source code."""
        return self.tokenizer.encode_masked(self.tokenizer.masked(text), False)

    def _encode(self, text: str, add_special_tokens: bool = True, masked: bool = False) -> list[int]:
        """Tokenise a prompt. A text too long for the context by its bytes alone is refused before that.

        Args:
            masked: control tokens that count as plain text are masked already (`Tokenizer.masked`).
        """
        self._check_size(text)
        if self.parse_special_tokens:
            return self.tokenizer.encode(text, add_special_tokens)
        return self.tokenizer.encode_masked(text if masked else self.tokenizer.masked(text), add_special_tokens)

    def _check_size(self, text: str, field: str = "prompt") -> None:
        """Raise InvalidParameter for a text that is no Unicode, or too long for the context by its bytes alone."""
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise InvalidParameter(field, "holds half a surrogate pair", "give valid Unicode") from None
        if size > self.max_model_len and size > self.max_model_len * self.tokenizer.longest_token:
            longest = f"this model's maximum context length is {self.max_model_len} tokens"
            problem = f"the {field} is too long: {size} bytes, and {longest}"
            remedy = "shorten it, or raise max_model_len or kv_cache_memory_bytes if the model's context is longer"
            raise PromptTooLong(field, problem, remedy)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def variables_of(given: Mapping[str, Any] | None, tools: Any) -> dict[str, Any]:
    """The variables of a template from `chat_template_kwargs` and `tools`.

    Raises:
        InvalidParameter: one of the two cannot be used.
    """
    check_variables({} if given is None else given)
    checked = checked_tools(tools) if tools is not None else []
    return dict(given or {}) | ({"tools": checked} if checked else {})


@contextmanager
def named(number: int, count: int, what: str = "prompts") -> Generator[None, None, None]:
    """Add the index to an `InvalidParameter` raised for one of several prompts, or of `what` they are."""
    try:
        yield
    except InvalidParameter as error:
        if count == 1:
            raise
        raise InvalidParameter(error.field, f"in {what}[{number}], {error.problem}", error.remedy) from None


def _with_end(messages: Sequence[Message], mark: str) -> Sequence[Message]:
    """`messages`, in the form of `plain_messages`, with `mark` at the end of the last one's text."""
    return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}{mark}"}]


def per_prompt(field: str, value: Any, kind: type, count: int) -> list[Any]:
    """`value` as a list with one entry per prompt. Raises InvalidParameter for a wrong type or number of values."""
    if isinstance(value, kind):
        return [value] * count
    values = list(value) if isinstance(value, Iterable) else [value]
    wrong = [each for each in values if not isinstance(each, kind)]
    if wrong:
        raise InvalidParameter(field, f"{wrong[0]!r} is no {kind.__name__}", "give one, or one per prompt")
    if len(values) != count:
        raise InvalidParameter(field, f"{len(values)} for {count} prompts", "give one, or one per prompt")
    return values


def as_list(prompts: Any) -> list[Prompt]:
    """`prompts` as a list; a single text or a single list of token ids is one prompt."""
    if not isinstance(prompts, Iterable | Gap) or isinstance(prompts, bytes | bytearray | Set):
        problem = f"{reprlib.repr(prompts)} is no prompt"
        raise InvalidParameter("prompts", problem, "give a text, token ids, or a list of such")
    if isinstance(prompts, str | Mapping | Gap):
        return [plain_prompt(prompts)]
    items: list[Any] = list(prompts)
    return [items] if items and isinstance(items[0], Integral) else [plain_prompt(item) for item in items]


def plain_prompt(prompt: Any) -> Any:
    """The text, token ids or gap of a prompt, which may be a mapping as in vLLM."""
    if not isinstance(prompt, Mapping):
        return prompt
    if {"prompt"} < prompt.keys() <= {"prompt", "suffix", "files"}:
        return _gap(prompt["prompt"], prompt.get("suffix"), prompt.get("files"))
    if len(prompt) != 1 or not prompt.keys() <= {"prompt", "prompt_token_ids"}:
        problem = f"{reprlib.repr(dict(prompt))} is no prompt"
        remedy = 'give {"prompt": text}, {"prompt": text, "suffix": text, "files": {}} or {"prompt_token_ids": ids}'
        raise InvalidParameter("prompt", problem, remedy)
    return next(iter(prompt.values()))


def text_of(prompt: Any) -> str | None:
    """The text of a prompt, before the gap where it has one; None of token ids."""
    return prompt.before if isinstance(prompt, Gap) else prompt if isinstance(prompt, str) else None


def _gap(before: Any, after: Any, files: Any) -> Any:
    """The prompt of a gap; that alone where nothing follows, and no files are given."""
    after, files = "" if after is None else after, {} if files is None else files
    if not isinstance(files, Mapping) or not all(isinstance(each, str) for file in files.items() for each in file):
        raise InvalidParameter("files", f"{reprlib.repr(files)} are no texts by name", 'give {"name.py": text}')
    if after == "" and not files:
        return before
    for field, value in (("prompt", before), ("suffix", after)):
        if not isinstance(value, str):
            raise InvalidParameter(field, f"{reprlib.repr(value)} is no text", "a suffix goes with a prompt of text")
    return Gap(before, after, tuple(files.items()))
