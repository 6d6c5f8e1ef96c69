"""Tokens that a folder declares beside tokenizer.json: the ids of texts are those of transformers' AutoTokenizer."""

import json

import pytest
from tokenizers import Tokenizer as Backend

from paceline.errors import CorruptWeights, UnsupportedModel
from paceline.models.text.tokenizer_folder import tokenizer_from_folder

from .vocabularies import SAMPLES, transformers_twin

TEXTS = [*SAMPLES, "a<|extra|>b <|x|> c<|y|> <img>the", "the cat<pad>  sat", "hat <mask> x"]
NUM_TOKENS = 376
"""Tokens of tokenizer.json, the added ones included; new tokens are numbered from here."""


@pytest.fixture
def folder(tmp_path):
    transformers_twin("gpt2").save_pretrained(tmp_path)
    return tmp_path


def declare(folder, declared):
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"} | declared
    path.write_text(json.dumps(settings))


def numbered(*tokens):
    return {str(NUM_TOKENS + i): token for i, token in enumerate(tokens)}


EXTRA = {"content": "<|extra|>", "special": True}
X = {"content": "<|x|>", "special": False, "lstrip": True}
Y = {"__type": "AddedToken", "content": "<|y|>", "rstrip": True, "special": True}
DECLARED = {
    "one": {"added_tokens_decoder": numbered(EXTRA)},
    "unordered": {"added_tokens_decoder": dict(reversed(numbered(EXTRA, X).items()))},
    "other flags than in tokenizer.json": {
        "added_tokens_decoder": numbered(EXTRA) | {str(NUM_TOKENS - 1): {"content": "<tool>", "special": True}}
    },
    "made special by a name": {
        "added_tokens_decoder": numbered({"content": "<pad>", "special": False}), "pad_token": "<pad>"
    },
    "list": {"additional_special_tokens": ["<|x|>", Y, "<tool>"]},
    "new list before old": {"extra_special_tokens": ["<|y|>"], "additional_special_tokens": ["<|x|>"]},
    "names": {"extra_special_tokens": {"image_token": "<img>"}, "mask_token": "<mask>", "add_bos_token": False},
    "names of the model": {"image_token": "<img>", "x_token": X | {"__type": "AddedToken"}, "pad_token": "<pad>"},
    "a word": {"pad_token": "cat"},
    "all": {"added_tokens_decoder": numbered(X, EXTRA), "pad_token": "<pad>", "extra_special_tokens": [Y, "<|extra|>"]},
}  # fmt: skip


@pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)
def test_declared_tokens_are_those_of_transformers(folder, declared):
    from transformers import AutoTokenizer

    declare(folder, declared)
    ours, theirs = tokenizer_from_folder(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.vocab_size == len(theirs)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text


def test_the_comparison_would_notice_a_token_that_is_left_out(folder):
    declare(folder, DECLARED["one"])
    alone = Backend.from_file(str(folder / "tokenizer.json"))
    assert tokenizer_from_folder(folder).encode("a<|extra|>b") != alone.encode("a<|extra|>b").ids
    assert alone.get_vocab_size(with_added_tokens=True) == NUM_TOKENS


def test_the_file_of_older_versions(folder):
    from transformers import AutoTokenizer

    declare(folder, {"extra_special_tokens": ["<|y|>"]})
    (folder / "added_tokens.json").write_text(json.dumps({"<|y|>": NUM_TOKENS + 1, "<|x|>": NUM_TOKENS}))
    ours, theirs = tokenizer_from_folder(folder), AutoTokenizer.from_pretrained(folder)
    assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]
    assert NUM_TOKENS + 1 in ours.special_token_ids and NUM_TOKENS not in ours.special_token_ids


BOS, EOS = {"bos_token": "<|im_start|>"}, {"eos_token": {"content": "<|im_end|>", "lstrip": False}}
OLDER = {
    "only there": ({}, BOS | EOS | {"pad_token": "<pad>", "unk_token": None}),
    "there too, and another": (BOS | EOS, {"eos_token": "<|x|>", "pad_token": {"content": "<pad>", "rstrip": True}}),
    "a newer folder": ({"added_tokens_decoder": numbered(EXTRA)} | BOS, EOS | {"bos_token": "<|x|>"}),
    "a newer folder without tokens": ({"added_tokens_decoder": {}}, BOS | EOS),
    "a list": (BOS, EOS | {"additional_special_tokens": ["<|x|>", "<|y|>"]}),
    "two lists": ({"extra_special_tokens": ["<|x|>"]}, {"extra_special_tokens": ["<|x|>", {"content": "<|y|>"}]}),
    "a name of the model": ({}, BOS | {"image_token": "<img>"}),
}
"""The content of tokenizer_config.json and that of special_tokens_map.json."""


@pytest.mark.parametrize(("declared", "older"), OLDER.values(), ids=OLDER)
def test_special_tokens_of_older_folders_are_those_of_transformers(folder, declared, older):
    from transformers import AutoTokenizer

    (folder / "tokenizer_config.json").write_text("{}")
    declare(folder, declared)
    (folder / "special_tokens_map.json").write_text(json.dumps(older))
    (folder / "chat_template.jinja").write_text("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}")
    messages = [{"role": "user", "content": "hi"}]
    ours, theirs = tokenizer_from_folder(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
    assert ours.apply_chat_template(messages) == theirs.apply_chat_template(messages, tokenize=False)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text


@pytest.mark.parametrize(
    ("older", "error", "named"),
    [
        ("{", CorruptWeights, "special_tokens_map.json: is not JSON"),
        ('{"eos_token": 5}', UnsupportedModel, "eos_token: 5 is no text of a token"),
        ('{"additional_special_tokens": "x"}', UnsupportedModel, "additional_special_tokens: 'x' is no list"),
    ],
)
def test_older_files_that_cannot_be_read_are_refused(folder, older, error, named):
    (folder / "special_tokens_map.json").write_text(older)
    with pytest.raises(error, match=named):
        tokenizer_from_folder(folder)


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"added_tokens_decoder": []}, "added_tokens_decoder: a list of 0 is no object"),
        ({"added_tokens_decoder": {"-1": EXTRA}}, "added_tokens_decoder: '-1'"),
        ({"added_tokens_decoder": {"2147483648": EXTRA}}, "added_tokens_decoder: '2147483648'"),
        ({"added_tokens_decoder": {"9" * 5000: EXTRA}}, "added_tokens_decoder: '999"),
        ({"added_tokens_decoder": {"٣": EXTRA}}, "added_tokens_decoder: '٣'"),
        ({"added_tokens_decoder": numbered("<|extra|>")}, "added_tokens_decoder: '376': '<|extra|>'"),
        ({"added_tokens_decoder": numbered({})}, r"added_tokens_decoder\.376: None is no text of a token"),
        ({"added_tokens_decoder": numbered({"content": 5})}, r"added_tokens_decoder\.376: 5 is no text"),
        ({"added_tokens_decoder": numbered(EXTRA | {"special": "yes"})}, "special: 'yes' is neither true nor false"),
        ({"added_tokens_decoder": {"900": EXTRA}}, r"'<\|extra\|>' has the id 900 there, and 376 after tokenizer.json"),
        ({"added_tokens_decoder": {"5": EXTRA}}, r"'<\|extra\|>' has the id 5 there, and 376 after"),
        ({"added_tokens_decoder": numbered(EXTRA, EXTRA)}, r"'<\|extra\|>' has the id 377 there, and 376 after"),
        ({"extra_special_tokens": "x"}, "extra_special_tokens: 'x' is no list"),
        ({"additional_special_tokens": ["x", 1]}, "additional_special_tokens: holds 1"),
        ({"extra_special_tokens": {"image_token": 3}}, r"extra_special_tokens\.image_token: 3 is no text"),
        ({"pad_token": ["<pad>"]}, "pad_token: a list of 1 is no text of a token"),
    ],
)
def test_what_is_no_token_or_has_another_id_is_refused_by_name(folder, declared, named):
    declare(folder, declared)
    with pytest.raises(UnsupportedModel, match=named):
        tokenizer_from_folder(folder)


@pytest.mark.parametrize("token_id", [True, -1, 1.5, "376", 2**31, 900])
def test_ids_of_the_older_file_are_checked_too(folder, token_id):
    (folder / "added_tokens.json").write_text(json.dumps({"<|x|>": token_id}))
    with pytest.raises(UnsupportedModel, match=r"added_tokens\.json: .*<\|x\|>"):
        tokenizer_from_folder(folder)
