"""What a model thinks aloud before it answers, apart from its answer, while both come.

Which models do so, and between which tags, is told by their chat template (`models/text/thought_tags.py`). Not for
calls of tools (`tools.py`).
"""

from paceline.models.text.thought_tags import THINK


class ThoughtReader:
    """Splits one answer.

    Args:
        is_open: its first word is a thought already, since the prompt ended with the tag.
        several: thoughts may follow after parts of the answer, too, as on the channels of gpt-oss.
        tags: the texts before and after thoughts.
    """

    def __init__(self, is_open: bool, several: bool = False, tags: tuple[str, str] = THINK[:2]) -> None:
        self._opening, self._closing = tags
        self._awaited: str | None = self._closing if is_open else self._opening
        self._several, self._between = several, ""
        self._held = ""
        self._is_bare = not several  # nothing was told since the last tag; blank space there belongs to neither part

    @property
    def is_thinking(self) -> bool:
        """Whether the latest text was a thought, or may have been."""
        return self._awaited == self._closing

    def push(self, text: str, ended: bool = False) -> tuple[str, str]:
        """(more of the thoughts, more of the answer); at the end whatever was held back."""
        if self._awaited is None and not self._is_bare and not self._several:
            return "", text
        self._held += text
        thoughts, answer = "", ""
        if self._several:
            return self._push_parts(ended)
        if self._awaited == self._opening:
            self._open()
        if self._awaited == self._closing:
            thoughts = self._read_thought(ended)
        if self._awaited is None:
            answer, self._held = self._bare(self._held), ""
        elif ended:
            answer, self._held = (self._held if self._awaited == self._opening else ""), ""
        return thoughts, answer

    def _push_parts(self, ended: bool) -> tuple[str, str]:
        """`push` where thoughts and parts of the answer take turns."""
        thoughts = answer = ""
        while True:
            if self._awaited == self._closing:
                thoughts += self._read_thought(ended)
            if self._awaited == self._closing:
                return thoughts, answer
            ahead, tag, rest = self._held.partition(self._opening)
            told = ahead if tag or ended else ahead[: len(ahead) - overlap(ahead, self._opening)]
            answer += self._bare(told)
            if not tag:
                self._held = ahead[len(told) :]
                return thoughts, answer
            self._awaited, self._held, self._is_bare = self._closing, rest, True
            thoughts, self._between = thoughts + self._between, "\n"

    def _open(self) -> None:
        """A first tag opens the thoughts; anything else shows that there are none."""
        begun = self._held.lstrip()
        if begun.startswith(self._opening):
            self._awaited, self._held = self._closing, begun.removeprefix(self._opening)
        elif not self._opening.startswith(begun):
            self._awaited, self._is_bare = None, False

    def _read_thought(self, ended: bool) -> str:
        """What is a thought for certain; the closing tag ends them."""
        inside, tag, rest = self._held.partition(self._closing)
        if tag:
            told = self._bare(inside).rstrip()
            self._awaited, self._is_bare, self._held = None, True, rest
            return told
        keep = 0 if ended else overlap(inside, self._closing)
        told = inside[: len(inside) - keep]
        if not ended:  # blank space before the tag is no thought
            told = told.rstrip()
        self._held = inside[len(told) :]
        return self._bare(told)

    def _bare(self, text: str) -> str:
        """`text` without blank space right after a tag."""
        if self._is_bare:
            text = text.lstrip()
            self._is_bare = not text
        return text


def overlap(text: str, tag: str) -> int:
    """Characters at the end of `text` that may begin `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-n:])), 0)
