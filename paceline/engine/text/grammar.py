"""Grammars by llguidance (MIT, microsoft/llguidance): compiled once, one cursor per sample. Needs the extra
``grammar``.

Not for applying a grammar to laws and drafts (`sampling/grammar.py`), nor for checking user input (`limits.py`).
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from paceline.engine.text.grammar_numbers import check_numbers
from paceline.engine.text.structural_tags import lark_of
from paceline.errors import InvalidParameter
from paceline.extras import install
from paceline.models.text.tokenizer import Tokenizer

_KEPT = 256
"""Number of compiled grammars in the LRU cache."""
_STACK = 1 << 28
"""Bytes of stack for compiling. llguidance recurses at every rule that names another, and the longest grammar has room
for thousands of them, which would overflow an ordinary stack and end the process. Only touched pages take memory."""
_STACK_SIZE = threading.Lock()
"""Held while the size of the stacks of new threads, one for the whole process, is changed."""
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON formatted as by `json.dumps`: more tokens are forced, and a model cannot emit white space without end."""
_LISTING = re.compile(r"\d+ \|")
"""How a line of the source begins in a message of llguidance."""


class Grammars:
    """Compiles and caches grammars for one vocabulary.

    Args:
        tokenizer: of the target.
        eos_token_ids: ids that end a text.
        vocab_size: of the model.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int], vocab_size: int) -> None:
        self._tokenizer, self._eos, self._vocab_size = tokenizer, tuple(eos_token_ids), vocab_size
        self._lock, self._compiling = threading.Lock(), threading.Lock()
        self._vocabulary: Any = None
        self._compiled: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def warm_up(self) -> None:
        """Build llguidance's vocabulary ahead of time, because that holds Python's lock. No-op without llguidance."""
        with suppress(InvalidParameter):
            self.compiled({"regex": "x"})

    def cursor(self, wanted: Mapping[str, str]) -> "Cursor":
        """A new cursor at the start of a grammar.

        Args:
            wanted: one entry, a kind of `limits.GRAMMARS` and its source.

        Raises:
            InvalidParameter: the grammar does not compile or is too large, or llguidance is not installed.
        """
        return Cursor(self.compiled(wanted).deep_copy(), self._eos, self._vocab_size)

    def compiled(self, wanted: Mapping[str, str]) -> Any:
        """The compiled matcher, which cursors copy. Thread-safe. Raises as `cursor`."""
        [key] = wanted.items()
        found = self._known(key)
        if found is not None:
            return found
        with self._compiling:  # one compilation at a time; cached grammars do not wait for it
            found = self._known(key) or self._compile(*key)
        with self._lock:
            self._compiled[key] = found
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return found

    def _known(self, key: tuple[str, str]) -> Any:
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
            return self._compiled.get(key)

    def _compile(self, kind: str, source: str) -> Any:
        try:
            import llguidance
        except ModuleNotFoundError:
            problem = "grammars need llguidance"
            raise InvalidParameter("structured_outputs", problem, install("grammar")) from None
        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._tokenizer, self._eos, self._vocab_size)
        try:
            special = {
                self._tokenizer.token_bytes(i).decode("utf-8", "replace") for i in self._tokenizer.special_token_ids
            }
            check_numbers(kind, source)
            matcher = _on_a_deep_stack(partial(self._made, llguidance, kind, source, special))
            problem = matcher.get_error() if matcher.is_error() else ""
        except Exception as error:  # llguidance documents no common exception class
            matcher, problem = None, str(error)
        if problem:
            raise InvalidParameter(
                "structured_outputs", f"{kind}: {_in_one_line(problem)[:300]}", "change the schema or grammar"
            )
        return matcher

    def _made(self, llguidance: Any, kind: str, source: str, special_tokens: Collection[str]) -> Any:
        grammar = _source(llguidance, kind, source, special_tokens)
        matcher = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0)
        self._begin(matcher)
        return matcher

    def _begin(self, matcher: Any) -> None:
        """Compute the first mask once, without Python's lock, so that copies need not.

        A copy's first `compute_ff_tokens` would do this work with the lock held: 33 ms for a schema of 60 kB.
        """
        if not matcher.is_error():
            words = np.zeros(-(-self._vocab_size // 32), dtype=np.uint32)
            matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)


def _on_a_deep_stack(work: Callable[[], Any]) -> Any:
    """The result of `work`, on a thread with a stack of `_STACK`."""
    with ThreadPoolExecutor(1) as thread:
        with _STACK_SIZE:
            before = threading.stack_size(_STACK)
            try:
                done = thread.submit(work)  # starts the thread
            finally:
                threading.stack_size(before)
        return done.result()


class Cursor:
    """A `GrammarCursor` over one matcher, which keeps the drafted tokens it has consumed so that it can roll them back.

    End tokens are never fed: a stopped matcher accepts one without counting it, so a rollback would go back too far.

    Args:
        matcher: at the start of its grammar; owned by this cursor.
        end_token_ids: ids that end a text.
        vocab_size: of the model.
    """

    def __init__(self, matcher: Any, end_token_ids: Collection[int], vocab_size: int) -> None:
        self._matcher, self._ends = matcher, frozenset(end_token_ids)
        self._beyond: list[int] = []
        self._words = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
        self._vocab_size = vocab_size
        self._is_finished = False

    @property
    def is_finished(self) -> bool:
        """See `GrammarCursor`."""
        return self._is_finished

    def allowed(self, path: Sequence[int] = ()) -> np.ndarray | None:
        """See `GrammarCursor`."""
        if not self._mask(path):
            return None
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        return bits[: self._vocab_size].view(np.bool_)

    def allows(self, token: int, path: Sequence[int] = ()) -> bool:
        """See `GrammarCursor`."""
        if token >= self._vocab_size or not self._mask(path):
            return False
        return bool(self._words[token >> 5] >> (token & 31) & 1)

    def _mask(self, path: Sequence[int]) -> bool:
        """Compute the bit mask of tokens that may follow `path`; False where none may."""
        if not self._go(path) or self._matcher.is_stopped():
            self._check()
            return False
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._check()
        return True

    def forced(self) -> Sequence[int]:
        """See `GrammarCursor`."""
        if self._is_finished or not self._go(()):
            return ()
        return self._matcher.compute_ff_tokens()

    def commit(self, token: int) -> None:
        """See `GrammarCursor`."""
        if token in self._ends:
            self._is_finished = True
            return
        if not self._go((token,)):
            self._check()
            raise ValueError(f"the grammar does not allow token {token} here")
        self._beyond.clear()
        self._is_finished = self._matcher.is_stopped()
        self._check()

    def _go(self, path: Sequence[int]) -> bool:
        """Move the matcher to the end of `path`. False, somewhere before that, when `path` is not allowed or ended."""
        shared = 0
        for ours, theirs in zip(self._beyond, path, strict=False):
            if ours != theirs:
                break
            shared += 1
        if shared < len(self._beyond):
            self._matcher.rollback(len(self._beyond) - shared)
            del self._beyond[shared:]
        ahead = list(path[shared:])
        if self._is_finished or not self._ends.isdisjoint(ahead):
            return False
        if not ahead:
            return True
        taken = self._matcher.try_consume_tokens(ahead)
        self._beyond += ahead[:taken]
        return taken == len(ahead)

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("{")[0].strip()  # what follows is the parser's state
            raise ValueError(f"the grammar failed: {reason[:120]}")


def _vocabulary(tokenizer: Tokenizer, eos_token_ids: Sequence[int], vocab_size: int) -> Any:
    """The tokenizer's vocabulary as llguidance wants it; padding ids stand for empty text."""
    from llguidance import LLTokenizer, TokenizerWrapper

    if not eos_token_ids:
        raise InvalidParameter("structured_outputs", "the model has no end token", "use another model")
    return LLTokenizer(
        TokenizerWrapper(_Spelled(tokenizer, eos_token_ids[0], vocab_size)),
        n_vocab=vocab_size,
        eos_token=list(eos_token_ids),
    )


class _Spelled:
    """A tokenizer with the attributes that llguidance expects."""

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int, vocab_size: int) -> None:
        self.eos_token_id, self.bos_token_id = eos_token_id, tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(i) if i < tokenizer.vocab_size else b"" for i in range(vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_token_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _in_one_line(problem: str) -> str:
    """A message of llguidance without the lines that point into the source, and without the parser's state."""
    lines = [line.strip() for line in problem.partition("<state>")[0].splitlines()]
    return " ".join(line for line in lines if line.strip("^ ") and not _LISTING.match(line))


def _source(llguidance: Any, kind: str, source: str, special_tokens: Collection[str]) -> str:
    """Translate a grammar of one of the kinds of `limits.GRAMMARS` into llguidance's format."""
    make = llguidance.LLMatcher
    if kind == "json":
        return make.grammar_from_json_schema(source, overrides=_COMPACT)
    if kind == "regex":
        return make.grammar_from_regex(source)
    if kind == "choice":
        return make.grammar_from_lark("start: " + " | ".join(json.dumps(each) for each in json.loads(source)))
    if kind == "structural_tag":
        return lark_of(llguidance, source, special_tokens)
    if "::=" in source:
        from llguidance.gbnf_to_lark import any_to_lark

        source = any_to_lark(source)
    return make.grammar_from_lark(source)
