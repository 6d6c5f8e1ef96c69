"""A chat template from a file or the command line in place of a model's own."""

import sys

import pytest

from paceline.config import EngineConfig, from_mapping
from paceline.errors import InvalidParameter
from paceline.models.text import template_meter
from paceline.models.text.given_template import read_template, with_given_template
from paceline.models.text.tokenizer import Tokenizer

from .vocabularies import byte_level_gguf, sentencepiece_gguf

BARE = Tokenizer.from_gguf(sentencepiece_gguf())
OWN = Tokenizer.from_gguf(byte_level_gguf(extra={"tokenizer.chat_template.tool_use": "tools {{ messages }}"}))
MESSAGES = [{"role": "user", "content": "hi"}]
SOURCE = "{% for m in messages %}[{{ m.role }}]\n{{ m.content }}\n{% endfor %}{{ eos_token }}"


def test_a_file_and_a_template_on_one_line_say_the_same(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text(SOURCE, encoding="utf-8")
    on_one_line = SOURCE.replace("\n", "\\n")
    assert read_template(path) == read_template(str(path)) == read_template(SOURCE) == read_template(on_one_line)
    assert with_given_template(BARE, read_template(path)).apply_chat_template(MESSAGES) == "[user]\nhi\n</s>"


def test_other_letters_and_backslashes_of_one_line_stay():
    assert read_template(r"{{ 'é \d \\ \" 日本' }}") == r"{{ 'é \d \ " + '" 日本' + "' }}"


def test_a_given_template_takes_the_place_of_all_others():
    changed = with_given_template(OWN, SOURCE)
    assert changed.apply_chat_template(MESSAGES, variables={"tools": [{}]}) == "[user]\nhi\n<|im_end|>"
    assert not changed.reads_tools and changed.chat_template_digest != OWN.chat_template_digest
    assert OWN.apply_chat_template(MESSAGES, variables={"tools": [{}]}).startswith("tools ")
    assert OWN.apply_chat_template(MESSAGES).startswith("<|im_start|>user")
    assert not BARE.has_chat_template and with_given_template(BARE, SOURCE).has_chat_template


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("nowhere.jinja", r"'nowhere.jinja' cannot be read \(No such file"),
        ("x" * 5000, r"cannot be read \(File name too long"),
        (".", "cannot be read"),
        ("a\0b", "cannot be read"),
        ("{% if %}", "does not compile"),
        ("{{ raise_exception('no users') }}", "with a user's message 'Hello' the chat template refuses them"),
        ("{{ 1 / 0 }}", "the chat template fails"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}", "cannot be used"),
        ("{}", "leaves out the text"),
    ],
)
def test_what_is_no_template_is_refused_by_the_options_name(given, problem, monkeypatch):
    monkeypatch.setattr(template_meter, "MOST_STEPS", 20_000)
    with pytest.raises(InvalidParameter, match=problem) as caught:
        with_given_template(BARE, read_template(given))
    assert caught.value.field == "chat_template" and len(str(caught.value)) < 6000
    assert sys.gettrace() is None or "template_meter" not in repr(sys.gettrace())


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidParameter, match="is no UTF-8 text"):
        read_template(path)


@pytest.mark.parametrize("value", ["", 5, b"{{ messages }}"])
def test_an_engine_takes_a_name_or_a_text(value):
    with pytest.raises(InvalidParameter, match="chat_template"):
        from_mapping(EngineConfig, {"chat_template": value})


def test_a_draft_model_has_no_use_for_it():
    assert EngineConfig(chat_template=SOURCE).in_one_process().chat_template is None
