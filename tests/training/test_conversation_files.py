"""Files of conversations: both layouts are read, and what is no such file is refused."""

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.training.conversation_files import read_conversations, write_conversations
from paceline.training.heads.conversations import Conversation

TALK = [Conversation(np.array([1, 2, 3, 4], np.int32), 2, 0.0), Conversation(np.array([70_000, 5], np.int32), 1, 1.0)]


def said(conversations):
    return [(one.ids.tolist(), one.num_prompt, one.temperature) for one in conversations]


def test_what_is_written_is_read(tmp_path):
    write_conversations(tmp_path / "new" / "talk.npz", TALK)
    assert said(read_conversations(tmp_path / "new" / "talk.npz")) == said(TALK)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["talk.npz"]


def apart(**changes):
    arrays = {
        "prompt": np.array([1, 2, 70_000]), "prompt_len": np.array([2, 1]), "answer": np.array([3, 4, 5]),
        "answer_len": np.array([2, 1]), "temperature": np.array([0.0, 1.0]),
    }  # fmt: skip
    return {name: value for name, value in (arrays | changes).items() if value is not None}


def test_prompts_and_answers_may_be_apart(tmp_path):
    np.savez(tmp_path / "talk.npz", **apart())
    assert said(read_conversations(tmp_path / "talk.npz")) == said(TALK)


@pytest.mark.parametrize(
    "changes",
    [
        {"answer_len": np.array([2, 2])},
        {"prompt_len": np.array([4, -1])},
        {"answer": np.array([0.5, 1.0, 2.0])},
        {"temperature": np.array([0.0])},
        {"answer": None},
        {"prompt": np.array([[1, 2, 3]])},
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes):
    np.savez(tmp_path / "talk.npz", **apart(**changes))
    with pytest.raises(InvalidParameter, match=r"^answers: "):
        read_conversations(tmp_path / "talk.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"text"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "talk.npz").write_bytes(content)
    with pytest.raises(InvalidParameter, match=r"^answers: "):
        read_conversations(tmp_path / "talk.npz")
    with pytest.raises(InvalidParameter, match=r"^answers: "):
        read_conversations(tmp_path / "nowhere.npz")
