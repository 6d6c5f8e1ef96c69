"""Text as it is released: never a piece of a stop string, and stop strings that come too early are text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.loop.live import spellings
from paceline.engine.text.line_reader import LineReader
from paceline.engine.text.stream import TextStream
from paceline.models.text.tokenizer import Tokenizer
from tests.fakes import ByteTokenizer
from tests.models.vocabularies import sentencepiece_gguf

AB = st.text("ab", min_size=1, max_size=4)


def read(text: str, stop: list[str], min_tokens: int = 0) -> tuple[list[str], bool]:
    """What is released with each character, the last piece being what the end released; and whether it stopped."""
    stream = TextStream(ByteTokenizer(), stop)
    pieces = []
    for count, character in enumerate(text, start=1):
        pieces.append(stream.push(ord(character), may_stop=count > min_tokens))
        if stream.stopped:
            break
    return [*pieces, stream.finish()], stream.stopped


def cut(text: str, stop: list[str], min_tokens: int) -> str | None:
    """The text before the stop string that is complete first; None when none is complete after `min_tokens`."""
    for end in range(min_tokens + 1, len(text) + 1):
        complete = [text[: end - len(s)] for s in stop if text[:end].endswith(s)]
        if complete:
            return min(complete, key=len)
    return None


@given(text=st.text("abc", max_size=12), stop=st.lists(AB, min_size=1, max_size=3), min_tokens=st.integers(0, 6))
def test_a_text_ends_before_the_first_stop_string_that_is_complete_behind_min_tokens(text, stop, min_tokens):
    pieces, stopped = read(text, stop, min_tokens)
    expected = cut(text, stop, min_tokens)
    assert stopped == (expected is not None)
    released = "".join(pieces)
    if expected is None:
        assert released == text
    else:  # what min_tokens let out before the stop string was complete cannot be taken back
        assert released == expected or (min_tokens and text.startswith(released) and released.startswith(expected))


def test_a_piece_of_a_stop_string_is_held_back_until_it_is_none():
    assert read("xaby", ["abc"]) == (["x", "", "", "aby", ""], False)
    assert read("xabc", ["abc"]) == (["x", "", "", "", ""], True)


def test_a_stop_string_within_min_tokens_is_text():
    assert read("xaby", ["ab"], min_tokens=3) == (["x", "", "ab", "y", ""], False)
    assert read("xabab", ["ab"], min_tokens=4) == (["x", "", "ab", "", "", ""], True)


def test_a_stop_string_that_begins_within_min_tokens_counts():
    assert read("xab", ["ab"], min_tokens=2) == (["x", "", "", ""], True)


def test_a_stop_string_may_stay():
    stream = TextStream(ByteTokenizer(), ["ab", "b"], keeps_stop=True)
    assert [stream.push(ord(character)) for character in "xab"] == ["x", "", "ab"]
    assert stream.finish() == "" and stream.text == "xab" and stream.stop_string == "ab"


def test_bad_words_are_forbidden_in_every_spelling():
    spelled = {word: spellings(ByteTokenizer(), word) for word in ("ab", " ab", "\nab", "\n", "  ")}
    ab = [[97, 98], [32, 97, 98]]
    assert spelled == {"ab": ab, " ab": ab, "\nab": [*ab, [10, 97, 98]], "\n": [[10]], "  ": [[32, 32]]}


def test_white_space_is_forbidden_where_a_tokenizer_puts_a_space_before_every_text():
    """It stands inside a text, where that space is not."""
    vocabulary = sentencepiece_gguf()
    names, tokenizer = vocabulary["tokenizer.ggml.tokens"], Tokenizer.from_gguf(vocabulary)
    told = {word: [[names[i] for i in ids] for ids in spellings(tokenizer, word)] for word in ("\n", " ", "\ncat")}
    assert told["\n"] == [["<0x0A>"]]
    assert told[" "] == [["▁"]]
    assert told["\ncat"][-1] == ["<0x0A>", "cat"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\n    b\n\n\t\t\t\tc\r\n    d", None), ("a\n  b", "a\n  "), ("a\n    b\n}", "a\n    b\n"), ("    a", None),
        ("a\n", None), ("a\nb", "a\n"),
    ],
)  # fmt: skip
def test_lines_that_are_indented_less_end_a_text(text, kept):
    for size in (1, 2, 3, len(text)):
        reader, found = LineReader(4), ""
        for at in range(0, len(text), size):
            part = text[at : at + size]
            last = reader.read(part)
            found += part if last is None else last
            if last is not None:
                break
        assert found == (text if kept is None else kept)


def test_no_line_begins_after_the_time_is_over():
    now = iter([0.0, 0.0, 0.5, 2.0, 2.1])
    reader = LineReader(seconds=1.0, clock=lambda: next(now))
    assert [reader.read(text) for text in ("a\n", "b\nc", "d", "e\nf")] == [None, None, None, "e"]


def lines_of(text, stop=(), min_tokens=0):
    """What a stream with limits of lines releases in all, whether a line ended it, and its stop string."""
    stream = TextStream(ByteTokenizer(), stop, lines=LineReader(2))
    for count, character in enumerate(text, start=1):
        stream.push(ord(character), may_stop=count > min_tokens)
        if stream.stopped:
            break
    stream.finish()
    return stream.text, stream.is_cut, stream.stop_string


def test_lines_and_stop_strings_end_a_text_whichever_is_first():
    assert lines_of("a\n  b\nc") == ("a\n  b\n", True, None)
    assert lines_of("a\n  b\nc", ["\nc"]) == ("a\n  b\n", True, None)  # the line ends before the string is complete
    assert lines_of("a\n  b\nc", ["b"]) == ("a\n  ", False, "b")
    assert lines_of("a\nb\n  c\nd", min_tokens=3) == ("a\nb\n  c\n", True, None)
