"""Lines from the user: edited, with history, on a terminal; as they come from a pipe. Of any length either way."""

import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper

from paceline.models.cache_dir import cache_dir


def line_reader(prompt: str, words: Sequence[str]) -> Callable[[], str]:
    """A function that reads a line, with completion of `words` at its start.

    It raises EOFError at the end of the input and KeyboardInterrupt on Ctrl-C.
    """
    if sys.stdin.isatty() and sys.stdout.isatty():
        return _editor(prompt, words)
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # a message that is no text is refused, and the next one read
    return _read_pipe


def _read_pipe() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _editor(prompt: str, words: Sequence[str]) -> Callable[[], str]:
    """Line editing by prompt_toolkit: arrows, history over sessions, search, a paste of many lines as one message."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        path = cache_dir() / "chat_history"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND, 0o600))  # for nobody else's eyes
        history = FileHistory(str(path))
    except OSError:
        history = InMemoryHistory()
    completer = WordCompleter(list(words), sentence=True)
    session = PromptSession(prompt, history=history, completer=completer, complete_while_typing=False)
    return session.prompt
