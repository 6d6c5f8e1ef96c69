"""`Tokenizer`, its readers, `StreamDecoder` and chat templates, against transformers and against rules spelled out."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from paceline.errors import CorruptWeights, InvalidParameter, UnsupportedModel
from paceline.models.text.call_formats import HERMES
from paceline.models.text.gguf_words import WORD_CUTS, word_cut
from paceline.models.text.tokenizer import StreamDecoder, Tokenizer
from paceline.models.text.tokenizer_folder import tokenizer_from_folder

from .vocabularies import (
    SAMPLES,
    byte_level,
    byte_level_gguf,
    gemma4_gguf,
    gemma_twin,
    sentencepiece_backend,
    sentencepiece_by_hand,
    sentencepiece_gguf,
    transformers_twin,
)

SMOLLM = Tokenizer.from_gguf(byte_level_gguf())
SENTENCEPIECE = Tokenizer.from_gguf(sentencepiece_gguf())
REPLACEMENT = "\ufffd"
CASES = [
    "camelCase HTMLParser iOS ǅungla",
    "WE'RE we're We'Ll",
    "a//b\n/ \r\n//",
    "नमस्ते e\u0301A",
    "ªº 中A文b",
    "12 345 6789",
]


def spelled(tokenizer, token):
    """The token as it stands within a text, control tokens too."""
    return tokenizer.decode([token], skip_special=False, continuation=True)


def pieces(tokenizer, text):
    return [spelled(tokenizer, i) for i in tokenizer.encode(text)]


def streamed(tokenizer, ids, **options):
    stream = StreamDecoder(tokenizer, **options)
    return [stream.push(i) for i in ids] + [stream.flush()]


@pytest.mark.parametrize("pre", ["gpt2", "qwen2"])
def test_encodes_and_decodes_as_transformers_does(pre):
    ours, theirs = Tokenizer.from_gguf(byte_level_gguf(pre)), transformers_twin(pre)
    for text in SAMPLES:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids, skip_special_tokens=False), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text


def test_gemma_4_merges_letters_in_the_order_of_a_list():
    ours, theirs = Tokenizer.from_gguf(gemma4_gguf()), gemma_twin()
    assert ours.encode("the cat sat on the mat")[0] == ours.bos_token_id
    assert len(ours.encode("the cat sat on the mat")) < 12
    for text in (*SAMPLES, "<bos>the cat<eos>", "a\n\n\nb"):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids, skip_special_tokens=False), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text


UNKNOWN_TO_TRANSFORMERS = {"stablelm2": "qwen2", "glm4": "dbrx", "chatglm-bpe": "dbrx", "seed-coder": None,
                           "deepseek-v3": None, "hunyuan-dense": None,
                           "deepseek-llm": None, "deepseek-coder": None}  # fmt: skip
"""Names that its table lacks, and what they are equal to there."""


@pytest.mark.parametrize("name", [name for name in WORD_CUTS if UNKNOWN_TO_TRANSFORMERS.get(name, name)])
def test_words_are_cut_as_transformers_cuts_them(name):
    """Its own table of the patterns in tokenizer.json, and GPT-2's class for the names that it leaves to that."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    known = UNKNOWN_TO_TRANSFORMERS.get(name, name)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=known not in GGUF_PRE_TOKENIZER_SPLITS)
    steps = [words]
    if known in GGUF_PRE_TOKENIZER_SPLITS:
        steps.insert(0, pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[known]), behavior="isolated"))
    elif name in ("smollm", "refact", "starcoder", "command-r"):
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    ours, theirs = word_cut(name).pre_tokenizer(), pre_tokenizers.Sequence(steps)
    for text in (*SAMPLES, *CASES):
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text), text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt2", ["We", "'re", " camelCaseHTMLDON", "'", "T", " 12345", "/", "\n", "/"]),
        ("refact", ["We", "'re", " camelCaseHTMLDON", "'", "T", " ", "1", "2", "3", "4", "5", "/", "\n", "/"]),
        ("dbrx", ["We", "'re", " camelCaseHTMLDON", "'T", " ", "123", "45", "/\n", "/"]),
        ("qwen2", ["We", "'re", " camelCaseHTMLDON", "'T", " ", "1", "2", "3", "4", "5", "/\n", "/"]),
        ("qwen35", ["We", "'re", " camelCaseHTMLDON", "'T", " ", "1", "2", "3", "4", "5", "/\n", "/"]),
        ("tekken", ["We", "'re", " camel", "Case", "HTMLDON", "'T", " ", "1", "2", "3", "4", "5", "/\n/"]),
        ("stablelm2", ["We", "'re", " camelCaseHTMLDON", "'T", " ", "1", "2", "3", "4", "5", "/\n", "/"]),
        ("deepseek-llm", ["We", "'", "re", " camelCaseHTMLDON", "'", "T", " ", "12345", "/", "\n", "/"]),
        ("deepseek-coder", ["We", "'", "re", " camelCaseHTMLDON", "'", "T", " ", *"12345", "/", "\n", "/"]),
        ("deepseek-v3", ["We", "'re", " camelCaseHTMLDON", "'T", " ", "123", "45", "/\n", "/"]),
        ("seed-coder", ["We", "'re", " camelCaseHTMLDON", "'T", " ", "1", "2", "3", "4", "5", "/", "\n", "/"]),
        ("gpt-4o", ["We're", " camel", "Case", "HTMLDON'T", " ", "123", "45", "/\n/"]),
    ],
)
def test_what_sets_the_ways_to_cut_apart(name, words):
    text = "We're camelCaseHTMLDON'T 12345/\n/"
    cut = word_cut(name).pre_tokenizer().pre_tokenize_str(text)
    assert [text[first:last] for _, (first, last) in cut] == words


def test_deepseek_cuts_off_digits_and_east_asian_letters_first():
    text = "f.name(x)=1234 (日本語です) cafe\u0301, “quoted”\n\n  end"
    cut = word_cut("deepseek-v3").pre_tokenizer().pre_tokenize_str(text)
    assert [text[first:last] for _, (first, last) in cut] == [
        "f", ".name", "(x", ")=", "123", "4", " (", "日本語です", ")", " cafe\u0301", ",", " “", "quoted", "”\n\n", " ",
        " end",
    ]  # fmt: skip


def test_signs_on_letters_belong_to_the_word_in_newer_qwens():
    text = "नमस्ते!"  # signs that no letter is composed with
    cuts = {name: word_cut(name).pre_tokenizer().pre_tokenize_str(text) for name in ("qwen2", "qwen35")}
    assert [text[first:last] for _, (first, last) in cuts["qwen35"]] == ["नमस्ते", "!"]
    assert len(cuts["qwen2"]) > 2


@pytest.mark.parametrize(
    "name", ["minimax-m2", "exaone4", "smaug-bpe", "hunyuan-dense", "seed-coder", "command-r", "tekken", "chatglm-bpe"]
)
def test_published_files_name_a_known_way_to_cut(name):
    """Of families of which `test_published_gguf.py` has none."""
    assert word_cut(name)


def test_smollm_keeps_every_digit_by_itself():
    assert pieces(SMOLLM, "in 2024 100") == [*pieces(SMOLLM, "in "), "2", "0", "2", "4", " ", "1", "0", "0"]
    words = Tokenizer.from_gguf(byte_level_gguf("gpt2"))
    assert "2024" in "".join(pieces(words, "in 2024")) and len(pieces(words, "in 2024")) < len(
        pieces(SMOLLM, "in 2024")
    )


def test_llama3_keeps_three_digits_together_and_prefers_whole_tokens():
    settings = byte_level_gguf("llama-bpe")
    tokens = settings["tokenizer.ggml.tokens"]
    tokens[tokens.index("<tool>")] = "123"
    settings["tokenizer.ggml.token_type"][-1] = 1
    tokenizer = Tokenizer.from_gguf(settings)
    assert pieces(tokenizer, "1234123") == ["<|im_start|>", "123", "4", "1", "2", "3"]
    assert tokenizer.encode("123") == [tokenizer.bos_token_id, tokens.index("123")]


def test_special_tokens_around_a_text_are_asked_for():
    with_bos = Tokenizer.from_gguf(byte_level_gguf(extra={"tokenizer.ggml.add_bos_token": True}))
    assert with_bos.encode("the cat") == [with_bos.bos_token_id, *SMOLLM.encode("the cat")]
    assert with_bos.encode("the cat", add_special_tokens=False) == SMOLLM.encode("the cat")


def test_special_tokens_in_a_text_count_and_can_be_skipped():
    ids = SMOLLM.encode("<|im_start|>cat<|im_end|>")
    assert (ids[0], ids[-1]) == (SMOLLM.bos_token_id, SMOLLM.eos_token_ids[0])
    assert SMOLLM.decode(ids) == "cat" and SMOLLM.decode(ids, skip_special=False) == "<|im_start|>cat<|im_end|>"
    tool = SMOLLM.encode("<tool>")
    assert len(tool) == 1 and SMOLLM.decode(tool) == "<tool>"


def test_sentencepiece_joins_by_score():
    for text in ("the cat sat", "that hat", "cats", "tthhee", "a  the"):
        ids = SENTENCEPIECE.encode(text)
        names = [sentencepiece_gguf()["tokenizer.ggml.tokens"][i] for i in ids]
        assert names == ["<s>", *sentencepiece_by_hand(text)], text
        assert SENTENCEPIECE.decode(ids) == text


def test_sentencepiece_spells_unknown_letters_in_bytes_and_drops_only_its_own_space():
    ids = SENTENCEPIECE.encode("é the", add_special_tokens=False)
    assert SENTENCEPIECE.decode(ids) == "é the"
    assert SENTENCEPIECE.decode(ids, continuation=True) == " é the"
    no_prefix = Tokenizer.from_gguf(sentencepiece_gguf({"tokenizer.ggml.add_space_prefix": False}))
    assert no_prefix.decode(no_prefix.encode(" the")) == " the"


@given(st.text())
def test_any_text_comes_back(text):
    assert SMOLLM.decode(SMOLLM.encode(text), skip_special=False) == text


@given(st.text(st.characters(codec="utf-8")))
def test_a_stream_of_a_text_never_shows_half_a_character(text):
    shown = streamed(SMOLLM, SMOLLM.encode(text), skip_special=False)
    assert "".join(shown) == text
    assert sum(piece.count(REPLACEMENT) for piece in shown) == text.count(REPLACEMENT)


@pytest.mark.parametrize("tokenizer", [SMOLLM, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
@given(data=st.data())
def test_a_stream_of_any_tokens_is_their_decoding(tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    for skip in (True, False):
        assert "".join(streamed(tokenizer, ids, skip_special=skip)) == tokenizer.decode(ids, skip, continuation=True)


def test_an_unfinished_character_waits_and_shows_at_the_end():
    first, *rest = SMOLLM.encode("\U0001f9ff")
    assert rest  # more than one token, or there is nothing to wait for
    assert streamed(SMOLLM, [first, *rest])[:-1] == [""] * len(rest) + ["\U0001f9ff"]
    assert streamed(SMOLLM, [first]) == ["", REPLACEMENT]
    assert spelled(SMOLLM, first) == REPLACEMENT


def test_padding_does_not_count_as_vocabulary():
    padded = Tokenizer.from_gguf(byte_level_gguf(padding=9))
    assert padded.vocab_size == SMOLLM.vocab_size
    assert padded.same_vocabulary(SMOLLM) and padded.vocabulary_fingerprint() == SMOLLM.vocabulary_fingerprint()
    assert padded.decode([padded.vocab_size + 2]) == ""


def test_another_vocabulary_is_noticed():
    settings = byte_level_gguf()
    tokens = settings["tokenizer.ggml.tokens"]
    tokens[-2], tokens[-3] = tokens[-3], tokens[-2]
    swapped = Tokenizer.from_gguf(settings)
    assert not swapped.same_vocabulary(SMOLLM)
    assert swapped.vocabulary_fingerprint() != SMOLLM.vocabulary_fingerprint()
    assert not SENTENCEPIECE.same_vocabulary(SMOLLM)


@pytest.mark.parametrize(
    ("settings", "error", "named"),
    [
        (byte_level_gguf("bloom"), UnsupportedModel, "tokenizer.ggml.pre: 'bloom'.*smollm"),
        ({"tokenizer.ggml.model": "bert"}, UnsupportedModel, "tokenizer.ggml.model: 'bert'"),
        ({}, UnsupportedModel, "tokenizer.ggml.model: None"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt2"}, CorruptWeights, "tokens: missing"),
        (byte_level_gguf(extra={"tokenizer.ggml.token_type": [1]}), CorruptWeights, "token_type: 1 for"),
        (byte_level_gguf(extra={"tokenizer.ggml.merges": ["no such"]}), CorruptWeights, "merges: do not fit"),
        (
            byte_level_gguf(extra={"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 9999}),
            CorruptWeights,
            "bos_token_id: 9999",
        ),
        (sentencepiece_gguf({"tokenizer.ggml.scores": [0.0]}), CorruptWeights, "scores: 1 for"),
        (sentencepiece_gguf({"tokenizer.ggml.scores": []}), CorruptWeights, "scores: missing"),
    ],
)
def test_vocabularies_that_cannot_be_used_are_refused_by_name(settings, error, named):
    with pytest.raises(error, match=named):
        Tokenizer.from_gguf(settings)


MESSAGES = [{"role": "user", "content": "hi"}]
RENDERED = "<|im_start|>user\nhi<|im_end|>\n"


def test_chat_template():
    assert SMOLLM.has_chat_template
    assert SMOLLM.apply_chat_template(MESSAGES) == RENDERED + "<|im_start|>assistant\n"
    assert SMOLLM.apply_chat_template(MESSAGES, add_generation_prompt=False) == RENDERED
    assert SMOLLM.decode(SMOLLM.encode_chat(MESSAGES), skip_special=False) == RENDERED + "<|im_start|>assistant\n"


def with_template(source):
    return Tokenizer.from_gguf(byte_level_gguf(extra={"tokenizer.chat_template": source}))


def test_what_templates_rely_on():
    source = "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{% break %}{% endfor %}"
    assert with_template(source).apply_chat_template(MESSAGES * 2) == '<|im_start|>{"role": "user", "content": "hi"}'
    assert with_template("{{ strftime_now('%Y') }}").apply_chat_template(MESSAGES).isdigit()


def test_what_transformers_always_passes_is_there(tmp_path):
    source = (
        "{{ tools is defined }} {% if tools is not none or documents is not none %}with them {% endif %}"
        "{{ pad_token }}{{ unk_token }}"
    )
    folder = save_folder(tmp_path, sentencepiece_backend(), {"pad_token": "</s>", "chat_template": source})
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.apply_chat_template(MESSAGES) == "True </s>"
    assert tokenizer.apply_chat_template(MESSAGES, variables={"tools": []}) == "True with them </s>"


@pytest.mark.parametrize(
    ("source", "messages", "named"),
    [
        ("{{ raise_exception('only users') }}", MESSAGES, "messages: .*only users"),
        ("{{ messages[0].content.x.y }}", MESSAGES, "messages: .*refuses"),
        ("{{ messages.append(1) }}", MESSAGES, "messages: .*refuses"),
        ("{{ ''.__class__.__mro__ }}", MESSAGES, "messages: .*refuses"),
        ("", [], "messages: the list is empty"),
        ("", [{"role": "user"}], r"messages\[0\].content"),
        ("", ["hello"], r"messages\[0\]: 'hello' is no message"),
    ],
)
def test_messages_that_cannot_be_rendered(source, messages, named):
    with pytest.raises(InvalidParameter, match=named):
        with_template(source or "x").apply_chat_template(messages)


def test_models_without_a_usable_template():
    with pytest.raises(InvalidParameter, match="no chat template"):
        SENTENCEPIECE.apply_chat_template(MESSAGES)
    with pytest.raises(UnsupportedModel, match="chat_template: does not compile"):
        with_template("{% for %}").apply_chat_template(MESSAGES)


def save_folder(folder: Path, backend: Backend, settings: dict | None) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_folder_saved_by_transformers(tmp_path, wrapped):
    transformers_twin("gpt2").save_pretrained(tmp_path)
    if wrapped:  # older versions write tokens as objects and templates as lists of named ones
        templates = [{"name": "tools", "template": "x"}, {"name": "default", "template": "{{ eos_token }}"}]
        tokens = {"bos_token": {"content": "<|im_start|>"}, "eos_token": {"content": "<|im_end|>"}}
        settings = tokens | {"chat_template": templates}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    else:
        (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}")
    tokenizer, of_gguf = tokenizer_from_folder(tmp_path), Tokenizer.from_gguf(byte_level_gguf("gpt2"))
    assert tokenizer.same_vocabulary(of_gguf)
    assert tokenizer.vocabulary_fingerprint() == of_gguf.vocabulary_fingerprint()
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (of_gguf.bos_token_id, of_gguf.eos_token_ids)
    assert tokenizer.apply_chat_template(MESSAGES) == "<|im_end|>"
    assert [tokenizer.encode(text) for text in SAMPLES] == [of_gguf.encode(text) for text in SAMPLES]


@pytest.mark.parametrize("in_files", [False, True])
def test_a_template_for_tools_is_taken_for_chats_with_tools(tmp_path, in_files):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    twin = PreTrainedTokenizerFast(tokenizer_object=Backend(models.BPE()))
    twin.backend_tokenizer.decoder = decoders.ByteLevel()
    twin.chat_template = {"default": "no tools", "tool_use": "<tool_call> {{ tools | length }}"}
    twin.save_pretrained(tmp_path, save_jinja_files=in_files)
    ours, theirs = tokenizer_from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.reads_tools and ours.call_format is HERMES
    for tools in (None, [{"type": "function", "function": {"name": "f"}}]):
        want = theirs.apply_chat_template(MESSAGES, tools=tools, tokenize=False)
        assert ours.apply_chat_template(MESSAGES, variables={"tools": tools}) == want


def test_a_sentencepiece_folder(tmp_path):
    tokenizer = tokenizer_from_folder(save_folder(tmp_path, sentencepiece_backend(), None))
    assert tokenizer.decode(tokenizer.encode("▁the")) == "the"
    assert tokenizer.decode(tokenizer.encode("▁the"), continuation=True) == " the"
    assert tokenizer.same_vocabulary(SENTENCEPIECE) and not tokenizer.has_chat_template


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json: missing"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CorruptWeights, match=r"tokenizer\.json: is not JSON"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptWeights, match=r"tokenizer\.json: cannot be read"):
        tokenizer_from_folder(tmp_path)
    words = Backend(models.WordPiece({"a": 0}))
    words.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModel, match="neither byte-level nor SentencePiece"):
        tokenizer_from_folder(save_folder(tmp_path, words, {}))


def test_the_vocabulary_reaches_every_byte():
    tokens, _ = byte_level()
    assert {SMOLLM.token_bytes(i) for i in range(len(tokens))} >= {bytes([b]) for b in range(256)}


@pytest.mark.weights
def test_the_default_models_tokenizer_is_transformers(default_source, monkeypatch):
    from transformers import AutoTokenizer

    from paceline.models.cache_dir import cache_dir

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    theirs = AutoTokenizer.from_pretrained(cache_dir() / "models", gguf_file="smollm2-135m.gguf")
    # transformers reads no pre-tokeniser from GGUF; SmolLM2's own tokenizer.json cuts digits first, then GPT-2's words.
    digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    ours = default_source.tokenizer
    assert ours.vocab_size == len(theirs) == 49152
    for text in SAMPLES:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text), skip_special=False) == text
    messages = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}, *MESSAGES]
    want = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.apply_chat_template(messages) == want


def test_settings_of_the_training_do_not_cut_or_pad_prompts(tmp_path):
    backend = sentencepiece_backend()
    plain = tokenizer_from_folder(save_folder(tmp_path, backend, None)).encode("▁the" * 20)
    backend.enable_truncation(3)
    backend.enable_padding(length=500)
    assert tokenizer_from_folder(save_folder(tmp_path, backend, None)).encode("▁the" * 20) == plain
    assert 3 < len(plain) < 500


def test_the_longest_token_bounds_what_a_token_can_say():
    for tokenizer in (SMOLLM, SENTENCEPIECE):
        sizes = [len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)]
        assert tokenizer.longest_token >= max(sizes)


def test_control_tokens_can_be_plain_text():
    """`masked` and `encode_masked`: no id of a control token comes out, and the text is the same."""
    names = [spelled(SMOLLM, i) for i in sorted(SMOLLM.special_token_ids)]
    for text in (*(f"a{name} b{name}" for name in names), "plain", "", "".join(names), "\ue000999999\ue001"):
        ids = SMOLLM.encode_masked(SMOLLM.masked(text))
        assert SMOLLM.special_token_ids.isdisjoint(ids) and SMOLLM.decode(ids) == text
    turns = [{"role": "user", "content": f"x{names[0]}", "tool_calls": [{"a": names[0]}], "n": 3}]
    masked = SMOLLM.masked(turns)
    assert names[0] not in json.dumps(masked) and masked[0]["n"] == 3
    assert SMOLLM.encode_masked("no marks at all") == SMOLLM.encode("no marks at all")


@pytest.mark.parametrize("tokenizer", [SMOLLM, SENTENCEPIECE], ids=["byte level", "sentencepiece"])
def test_what_is_saved_is_read_again(tokenizer, tmp_path):
    for name, text in tokenizer.files().items():
        (tmp_path / name).write_text(text)
    again = tokenizer_from_folder(tmp_path)
    for text in SAMPLES:
        assert again.encode(text) == tokenizer.encode(text)
        assert again.decode(again.encode(text)) == tokenizer.decode(tokenizer.encode(text))
    assert (again.bos_token_id, again.eos_token_ids) == (tokenizer.bos_token_id, tokenizer.eos_token_ids)
    assert again.has_chat_template == tokenizer.has_chat_template
