"""Text carried between vocabularies: step by step it ends up where one go does, and spells what was written."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.draft_models.retokenize import Continuing, Follower, Respeller, safe_place
from paceline.models.resolve import ModelSource
from paceline.models.text.tokenizer import Tokenizer
from tests.fakes import ByteTokenizer, PieceTokenizer
from tests.models.vocabularies import LINES, byte_level_gguf, sentencepiece_gguf

BYTES = ByteTokenizer()


@pytest.fixture(scope="module")
def words():
    return Tokenizer.from_gguf(byte_level_gguf())


@pytest.fixture(scope="module")
def pieces():
    return Tokenizer.from_gguf(sentencepiece_gguf())


def source(tokenizer, eos=(), num_rows=None):
    """A model with this tokenizer and `num_rows` logits, by default one for each of its tokens."""

    class Found:
        name = type(tokenizer).__name__
        eos_token_ids = tuple(eos) or tokenizer.eos_token_ids
        checkpoint = SimpleNamespace(config=SimpleNamespace(vocab_size=num_rows or tokenizer.vocab_size))

    Found.tokenizer = tokenizer
    found: ModelSource = Found  # type: ignore[assignment]
    return found


def spelled(tokenizer, tokens):
    return b"".join(tokenizer.token_bytes(token) for token in tokens).decode()


WORDS = ["the", "cat", "sat", "on", "mat", "", "and\nhe", "2024", "don't"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=30), st.data())
def test_a_text_read_in_steps_is_cut_as_in_one_go(words, read, data):
    ids = BYTES.encode(" ".join(read))
    text = Follower(BYTES, Continuing(words))
    while text._num_read < len(ids):
        text.extend(ids[: text._num_read + data.draw(st.integers(1, 12))])
    assert text.tokens == words.encode(" ".join(read))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([40, 480, 500, 530, 1100]), min_size=1, max_size=4), st.data())
def test_where_words_without_end_are_cut_does_not_depend_on_the_steps(words, lengths, data):
    ids = BYTES.encode(" ".join("thecatsat"[: 3 + place] * length for place, length in enumerate(lengths)))
    whole, steps = Follower(BYTES, Continuing(words)), Follower(BYTES, Continuing(words))
    whole.extend(ids)
    while steps._num_read < len(ids):
        steps.extend(ids[: steps._num_read + data.draw(st.integers(1, 700))])
    assert steps.tokens == whole.tokens


def test_a_step_encodes_only_what_is_new(words):
    encoded = []

    class Counting:
        def encode(self, text, add_special_tokens=True):
            encoded.append(len(text))
            return words.encode(text, add_special_tokens=add_special_tokens)

        def token_bytes(self, token_id):
            return words.token_bytes(token_id)

    ids = BYTES.encode("the cat sat on the mat " * 200)
    text = Follower(BYTES, Continuing(Counting()))
    text.extend(ids)
    encoded.clear()
    for end in range(len(ids) + 1, len(ids) + 100):
        text.extend([*ids, *BYTES.encode("x the hat" * 20)][:end])
    assert max(encoded) < 60


def test_a_text_without_blanks_is_cut_all_the_same(words):
    text = Follower(BYTES, Continuing(words))
    ids: list[int] = []
    for _ in range(200):
        ids += BYTES.encode("abcdefghij")
        text.extend(ids)
    assert len(text._open_text) <= 512
    assert spelled(words, text.tokens) == "abcdefghij" * 200


def test_half_a_character_waits_for_its_other_half(words):
    target = Tokenizer.from_gguf(byte_level_gguf())
    by_byte = [target._backend.token_to_id(letter) for letter in ("Ã", "©")]  # the two bytes of é
    assert b"".join(map(target.token_bytes, by_byte)) == "é".encode()
    text = Follower(target, Continuing(words))
    text.extend(by_byte[:1])
    assert not text.is_whole
    text.extend(by_byte)
    assert text.is_whole
    assert spelled(words, text.tokens) == "é"


def test_a_blank_that_a_tokenizer_adds_is_not_doubled(pieces):
    encode = Continuing(pieces)
    assert spelled(pieces, encode(" cat sat")) == " cat sat"
    assert spelled(pieces, encode("\ncat")).lstrip(" ") == "\ncat"


def test_the_targets_own_beginning_is_left_out_and_the_drafts_put_in(words, pieces):
    target = Tokenizer.from_gguf(byte_level_gguf(extra={"tokenizer.ggml.add_bos_token": True}))
    assert target.bos_token_id is not None
    text = Follower(target, Continuing(words))
    text.extend([target.bos_token_id, *target.encode("the cat", add_special_tokens=False)])
    assert text.tokens == words.encode("the cat")


def test_another_text_under_the_same_name_is_noticed(words):
    text = Follower(BYTES, Continuing(words))
    text.extend(BYTES.encode("the cat"))
    assert text.continues(BYTES.encode("the cat sat"))
    assert not text.continues(BYTES.encode("the"))
    assert not text.continues(BYTES.encode("the hat sat"))


TARGET = PieceTokenizer(*"abcdefghijklmnopqrstuvwxyz \n", " cat", " draft", "ing", " drafting", "</s>")
DRAFT = PieceTokenizer(*"abcdefghijklmnopqrstuvwxyz \n", " c", "at", " dr", "aft", "</s>", "<tool>")


def respelled(committed: str, drafted: str, tokenizer=TARGET) -> list[str]:
    """What follows `committed`, as pieces of the target; both texts are cut by their own vocabularies."""
    tokens = Respeller(source(tokenizer), source(DRAFT))(tokenizer.encode(committed), DRAFT.encode(drafted))
    return [tokenizer.token_bytes(token).decode() for token in tokens]


@pytest.mark.parametrize(
    ("committed", "drafted", "expected"),
    [
        ("the", " cat drafting", [" cat", " drafting"]),
        ("the cat draft", "ing", ["ing"]),  # ' drafting' would change a token that is committed
        ("the dr", "aft", ["a", "f", "t"]),
        ("the", " cat</s>the", [" cat", "</s>"]),
        ("the", "</s>", ["</s>"]),
        ("the", "<tool> cat", []),
        ("", " cat", [" cat"]),
    ],
)
def test_a_draft_is_spelled_in_the_targets_tokens(committed, drafted, expected):
    assert respelled(committed, drafted) == expected


def test_a_word_begun_by_the_target_is_finished_in_its_own_cut():
    split = PieceTokenizer(*"abcdefghijklmnopqrstuvwxyz \n", " d", "raft", "</s>")
    tokens = Respeller(source(split), source(DRAFT))(split.encode("the d"), DRAFT.encode("raft"))
    assert [split.token_bytes(token) for token in tokens] == [b"raft"]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LINES), st.integers(0, 40), st.integers(1, 20))
def test_every_proposal_spells_a_beginning_of_what_was_drafted(words, pieces, line, cut, length):
    draft = source(words)
    drafted = words.encode(line[cut:], add_special_tokens=False)[:length]
    wanted = b"".join(map(words.token_bytes, drafted))
    tokens = Respeller(source(pieces), draft)(pieces.encode(line[:cut]), drafted)
    assert wanted.startswith(b"".join(map(pieces.token_bytes, tokens)))


def test_a_safe_place_is_a_single_blank_between_words():
    assert safe_place("one two  three", 14) == 3
    assert safe_place("one two  three", 2) == 0
    assert safe_place("one", 3) == 0
    assert safe_place("one two ", 8) == 3
