"""Prompts of fill-in-the-middle: each family's tokens in its order, and suffixes that get no space."""

import pytest

from paceline.errors import InvalidParameter
from paceline.models.text.infill import Infill
from paceline.models.text.tokenizer import Tokenizer

from .vocabularies import CONTROL, USER_DEFINED, byte_level_gguf, sentencepiece_gguf

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
FAMILIES = {
    "qwen": QWEN,
    "starcoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    "deepseek": ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    "glm": ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
}
CODE_LLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>")


def with_tokens(metadata, *names, kind=USER_DEFINED):
    longer = {"tokens": names, "token_type": [kind] * len(names), "scores": [0.0] * len(names)}
    keys = {f"tokenizer.ggml.{key}": more for key, more in longer.items()}
    return Tokenizer.from_gguf(metadata | {key: [*metadata[key], *keys[key]] for key in keys if key in metadata})


def asked(tokenizer, before, after):
    infill = Infill.of(tokenizer)
    return infill.prompt(before, after, lambda text: tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_prompt_is_prefix_suffix_and_middle(family, kind):
    tokenizer = with_tokens(byte_level_gguf(), *FAMILIES[family], kind=kind)
    prefix, suffix, middle = (tokenizer.token_id(name) for name in FAMILIES[family])
    before, after = "def mean(values):\n    ", "\n    return total"
    first, second = (tokenizer.encode(text, add_special_tokens=False) for text in (before, after))
    assert asked(tokenizer, before, after) == [prefix, *first, suffix, *second, middle]
    assert asked(tokenizer, "", after) == [prefix, suffix, *second, middle]
    assert asked(tokenizer, before, "") == [prefix, *first, suffix, middle]


def test_without_a_middle_the_suffix_is_first():
    tokenizer = with_tokens(byte_level_gguf(), "[SUFFIX]", "[MIDDLE]", "[PREFIX]")
    prefix, suffix = tokenizer.token_id("[PREFIX]"), tokenizer.token_id("[SUFFIX]")
    first, second = (tokenizer.encode(text, add_special_tokens=False) for text in ("a = ", " + 1"))
    assert asked(tokenizer, "a = ", " + 1") == [suffix, *second, prefix, *first]


def test_a_suffix_gets_no_space_where_encoding_adds_one():
    tokenizer = with_tokens(sentencepiece_gguf(), *CODE_LLAMA)
    prefix, suffix, middle = (tokenizer.token_id(name) for name in CODE_LLAMA)
    found = asked(tokenizer, "the", "cat")
    at = found.index(suffix)
    assert found[:at] == [prefix, tokenizer.token_id("▁the")]  # as at the beginning of any text
    assert found[at:] == [suffix, tokenizer.token_id("cat"), middle]
    spaced = asked(tokenizer, "the", " the cat")
    assert tokenizer.decode(spaced[spaced.index(suffix) + 1 : -1], continuation=True) == " the cat"


def test_what_begins_another_file_ends_the_middle():
    tokenizer = with_tokens(byte_level_gguf(), *QWEN, "<|fim_pad|>", "<|file_sep|>", "<|other|>")
    ends = {tokenizer.decode([token_id], skip_special=False) for token_id in Infill.of(tokenizer).ends}
    assert ends == {*QWEN, "<|fim_pad|>", "<|file_sep|>"}


def test_a_vocabulary_without_the_tokens_is_refused():
    with pytest.raises(InvalidParameter, match="suffix: the model's vocabulary has no tokens for filling"):
        Infill.of(with_tokens(byte_level_gguf(), *QWEN[:2]))
