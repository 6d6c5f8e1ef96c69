"""Fill-in-the-middle: the prompt with which a code model writes what belongs between two texts.

Such models were trained on documents of which a middle part was moved to the end (Bavarian et al., "Efficient Training
of Language Models to Fill in the Middle", 2022): control tokens mark what came before it, what comes after it, and
where it begins. Not for what a client may ask (`engine/text/prompts.py`, `serving/protocol/openai.py`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter
from paceline.models.text.tokenizer import Tokenizer

_SPELLINGS: tuple[tuple[str, str, str], ...] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)
"""Tokens before the text that precedes the gap, before the text that follows it, and before the middle, by family."""
_SUFFIX_FIRST = ("[PREFIX]", "[SUFFIX]")
"""Those of Codestral, whose prompt is the suffix, then the prefix; the middle follows without a token of its own."""
_ENDS = (
    "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<file_sep>", "<|file_separator|>", "<|repo_name|>",
    "<repo_name>", "<reponame>", "<|endoftext|>", "<|end_of_text|>", "▁<EOT>", "<|cursor|>",
)  # fmt: skip
"""Tokens after a middle, of which most begin the next file of a training text; an answer of a chat may hold them."""
_REPOSITORY = ("<|repo_name|>", "<repo_name>", "<reponame>")
_FILE = ("<|file_sep|>", "<file_sep>", "<|file_separator|>")
"""Tokens before the name of a project, and before that of each of its files (Hui et al., "Qwen2.5-Coder Technical
Report", 2024, section 3.2; Lozhkov et al., "StarCoder 2 and The Stack v2", 2024, section 5)."""
_PROJECT, _THIS_FILE = "project", "file"
"""In the place of names that are not known."""
_STEPS = 8
_BEGIN = "☺"
"""What is encoded before a suffix and cut off again, so that no space is added at the suffix's beginning."""


@dataclass(frozen=True, slots=True)
class Infill:
    """How one model is asked for the middle.

    Attributes:
        prefix, suffix: ids of the tokens before the text that precedes the gap and before the one that follows it.
        middle: id of the token after which the middle is written; None where there is none, and the suffix is first.
        ends: ids of tokens that end the middle, beside those that end every text.
        repository, file: ids of the tokens before the name of a project and before that of a file; None where there is
            none.
        adds_space: whether encoding adds a space at the beginning of a text.
    """

    prefix: int
    suffix: int
    middle: int | None
    ends: tuple[int, ...]
    repository: int | None
    file: int | None
    adds_space: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Infill":
        """That of the model with this tokenizer.

        Raises:
            InvalidParameter: its vocabulary has no tokens for it.
        """
        ends = _known(tokenizer, _ENDS)
        for names in (*_SPELLINGS, _SUFFIX_FIRST):
            ids = _known(tokenizer, names)
            if len(ids) == len(names):
                prefix, suffix, *middle = ids
                of_project, of_file = (next(iter(_known(tokenizer, each)), None) for each in (_REPOSITORY, _FILE))
                return cls(
                    prefix, suffix, middle[0] if middle else None, (*ids, *ends), of_project, of_file,
                    tokenizer.strips_space,
                )  # fmt: skip
        problem = "the model's vocabulary has no tokens for filling in the middle"
        raise InvalidParameter("suffix", problem, "leave it out, or take a model of code, e.g. Qwen2.5-Coder")

    def prompt(
        self, before: str, after: str, encode: Callable[[str], list[int]], files: Sequence[tuple[str, str]] = (),
        most: int | None = None,
    ) -> list[int]:  # fmt: skip
        """Token ids that ask for the text between `before` and `after`.

        Args:
            encode: of a text, without the tokens at a prompt's beginning or end.
            files: (name, text) of other files of the project, which precede the one with the gap.
            most: most tokens; None for any number. Of more, files are left out from the first one on, and where that is
                not enough, the beginning of `before` and the end of `after`, of which a quarter of the tokens is kept.
                The beginning is cut in steps, so that the prompts of a text that grows begin alike.
        """
        first, second = encode(before) if before else [], self._continuation(after, encode) if after else []
        own = self._of_file(encode, _THIS_FILE) if files and self.file is not None else []
        project = [] if not files or self.repository is None else [self.repository, *encode(f"{_PROJECT}\n")]
        room: float = math.inf
        if most is not None:
            room = most - 3
            second = second[: max(room // 4, room - len(first), 0)]
            first = first[steps_for(len(first) + len(second) - room, room) :]
            room -= len(first) + len(second) + len(own) + len(project)
        others: list[list[int]] = []
        for name, text in reversed(files):
            others.insert(0, self._of_file(encode, name, text))
            room -= len(others[0])
            if room < 0:
                del others[0]
                break
        context = [*project, *(token_id for each in others for token_id in each), *own] if others else []
        if self.middle is None:
            return [*context, self.suffix, *second, self.prefix, *first]
        return [*context, self.prefix, *first, self.suffix, *second, self.middle]

    def _of_file(self, encode: Callable[[str], list[int]], name: str, text: str = "") -> list[int]:
        """A file with its name, or the beginning of one."""
        whole = f"{name}\n{text}" if not text or text.endswith("\n") else f"{name}\n{text}\n"
        return [self.file, *encode(whole)] if self.file is not None else encode(f"{whole}\n")

    def _continuation(self, text: str, encode: Callable[[str], list[int]]) -> list[int]:
        if not self.adds_space:
            return encode(text)
        begin, whole = encode(_BEGIN), encode(_BEGIN + text)
        return whole[len(begin) :] if whole[: len(begin)] == begin else encode(text)


def _known(tokenizer: Tokenizer, names: Sequence[str]) -> tuple[int, ...]:
    return tuple(found for name in names if (found := tokenizer.token_id(name)) is not None)


def steps_for(excess: int, room: int) -> int:
    """How much to cut where `excess` is too much: steps of an eighth of `room`, so that few keys change the cut."""
    step = max(room // _STEPS, 1)
    return -(-max(excess, 0) // step) * step
