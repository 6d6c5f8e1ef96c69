"""Prompts of the command line and of files."""

import json
import os
import subprocess
import sys

import pytest

from paceline.cli.options.prompts import prompt_ids, prompts_of, read_prompts, read_text
from paceline.errors import InvalidParameter


class Letters:
    """A tokenizer of one id per letter; a chat begins with -1."""

    has_chat_template = True

    def encode(self, text):
        return [ord(letter) for letter in text]

    def encode_chat(self, messages):
        assert [message["role"] for message in messages] == ["user"]
        return [-1, *self.encode(messages[0]["content"])]


def test_a_prompt_is_plain_or_a_chat():
    assert prompt_ids(Letters(), "a", raw=True) == [97]
    assert prompt_ids(Letters(), "a", raw=False) == [-1, 97]


def test_a_model_without_a_template_reads_the_prompt_as_it_is():
    tokenizer = Letters()
    tokenizer.has_chat_template = False
    assert prompt_ids(tokenizer, "a", raw=False) == [97]


def test_arguments_may_name_files(tmp_path):
    lines, records = tmp_path / "lines.txt", tmp_path / "records.jsonl"
    lines.write_text("tw\u00f6\n\nthree\n", encoding="utf-8")
    records.write_text('{"prompt": "four"}\n{"turns": ["five", "six"]}\n')
    assert prompts_of(["one", f"@{lines}", f"@{records}"]) == ["one", "tw\u00f6", "three", "four", "five"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("empty.txt", b"\n", "is empty"),
        ("bytes.txt", b"\xff", "cannot be read"),
        ("a.jsonl", b'{"prompt": "x"}\n\n{"question": "y"}', r"a\.jsonl, line 3 holds no prompt"),
        ("b.jsonl", b'{"turns": []}', "line 1 holds no prompt"),
        ("c.jsonl", b'{"turns": "not a list"}', "line 1 holds no prompt"),
        ("d.jsonl", b'{"prompt": 5}', "line 1 holds no prompt"),
        ("e.jsonl", b"[" * 100_000, "line 1 is no JSON"),
        ("i.jsonl", b'{"prompt": "x"}\nwhat is this?', r"line 2 is no JSON \(Expecting value.*write .\"prompt\""),
        ("f.jsonl", b'{"prompt": "\\ud800"}', "line 1 holds half a surrogate pair"),
        ("g.jsonl", b'{"prompt": "x", "answer": "\\ud800"}', "line 1 holds half a surrogate pair"),
        ("h.json", b'[{"prompt": "x"}]', r"h\.json is one JSON value; write a record on each line"),
    ],
)
def test_files_that_hold_no_prompts_are_refused(tmp_path, name, content, problem):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidParameter, match=problem) as refusal:
        read_prompts(path)
    assert refusal.value.field == "prompts"


def test_all_records_of_measurements_are_read(tmp_path):
    path = tmp_path / "prompts.jsonl"
    chat = {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "two"}]}
    path.write_text("\n".join(map(json.dumps, [{"text": "one"}, chat])))
    assert read_prompts(path) == ["one", "two"]


@pytest.mark.parametrize(("name", "line"), [("a.txt", "one"), ("a.jsonl", '{"prompt": "one"}')])
def test_a_mark_at_the_beginning_is_no_part_of_the_text(tmp_path, name, line):
    path = tmp_path / name
    path.write_text(line, encoding="utf-8-sig")
    assert read_prompts(path) == ["one"]
    assert read_text("texts", path) == line


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidParameter, match=r"texts.*gone\.txt cannot be read"):
        read_text("texts", tmp_path / "gone.txt")


def test_ends_of_lines_within_a_record_are_its_own(tmp_path):
    """JSON keeps U+2028 and the like as they are; `str.splitlines` would cut a record there."""
    from paceline.evaluation.prompts import load_prompts

    path, texts = tmp_path / "prompts.jsonl", ["one\u2028two\x85three", "four"]
    lines = [json.dumps({"prompt": text, "answer": text}, ensure_ascii=False) for text in texts]
    path.write_text("\r\n".join(lines) + "\n", encoding="utf-8", newline="")
    assert read_prompts(path) == texts
    assert [one.answer for one in load_prompts(str(path))] == texts


def test_an_argument_that_is_no_utf8_is_refused():
    with pytest.raises(InvalidParameter, match=r"prompts: the argument is not UTF-8 \(its byte 3\)"):
        prompts_of(["caf\udce9"])
    with pytest.raises(InvalidParameter, match=r"prompts: the argument is not UTF-8"):
        prompts_of(["\ud800"])


def test_a_locale_of_another_encoding_changes_no_argument():
    imports = "import sys; from paceline.cli.options.prompts import argument_text"
    said = f"{imports}; print(ascii(argument_text('p', sys.argv[1])))"
    for utf8 in "01":
        environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": utf8}
        found = subprocess.check_output([sys.executable, "-c", said, "é日本"], env=environment)
        assert found.decode().strip() == ascii("é日本")
