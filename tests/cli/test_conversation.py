"""A chat outlives a full context, a message that is too long, and every slash command."""

import io
import warnings
from types import SimpleNamespace

import pytest

from paceline.cli.chat import ChatLoop
from paceline.cli.conversation import Conversation
from paceline.cli.terminal import streams as terminal
from paceline.cli.terminal.line_input import line_reader
from paceline.errors import DrafterWarning, InvalidParameter
from paceline.types import SamplingParams, TokenOutput


def encode(messages):
    """A token for each letter, and one for each message."""
    return [0] * sum(1 + len(message["content"]) for message in messages)


def conversation(max_model_len=100, reserve=10, system=None):
    return Conversation(encode, max_model_len, reserve, system)


def test_the_oldest_turns_go_when_the_context_is_full():
    talk = conversation(system="S")
    sizes = []
    for number in range(6):
        ids, dropped = talk.ask(f"{number}" * 19)
        talk.answer("a" * 9)
        sizes.append((len(ids), dropped))
    assert sizes == [(22, 0), (52, 0), (82, 0), (82, 2), (82, 2), (82, 2)]


def test_a_message_that_cannot_fit_leaves_the_conversation_as_it_was():
    talk = conversation()
    talk.ask("first")
    talk.answer("answer")
    with pytest.raises(InvalidParameter, match="does not fit"):
        talk.ask("x" * 200)
    assert talk.ask("second")[0] == encode([{"content": "first"}, {"content": "answer"}, {"content": "second"}])


def test_a_message_that_is_no_unicode_leaves_the_conversation_as_it_was():
    talk = conversation()
    talk.ask("a")
    with pytest.raises(InvalidParameter, match="not valid UTF-8"):
        talk.ask("b\ud800")
    assert talk.ask("c")[0] == encode([{"content": "a"}, {"content": "c"}])


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    with pytest.raises(InvalidParameter, match="save"):
        conversation().save(tmp_path / "a\0b")


def test_all_turns_are_saved_even_those_that_no_longer_fit(tmp_path):
    talk = conversation(system="be brief")
    for number in range(6):
        talk.ask(f"{number}" * 19)
        talk.answer("fine")
    assert talk.save(tmp_path / "talk.txt") == 12
    text = (tmp_path / "talk.txt").read_text()
    assert "user: " + "0" * 19 in text and "user: " + "5" * 19 in text and text.startswith("system: be brief")


def lines(*texts):
    """A reader of these lines, some of which are errors to raise."""
    waiting = iter([*texts, EOFError()])

    def read():
        text = next(waiting)
        if isinstance(text, BaseException):
            raise text
        return text

    return read


class Recorder(ChatLoop):
    """A loop that keeps what it is asked instead of answering it."""

    def __init__(self, talk):
        super().__init__(None, None, talk)
        self.asked = []

    def _answer(self, text):
        if text:
            self.asked.append((text, self._conversation.ask(text)))


def test_commands_are_obeyed_and_never_sent_to_the_model(tmp_path, capsys):
    loop = Recorder(conversation())
    path = tmp_path / "talk.txt"
    loop.run(
        lines("hello", "/help", "/stats", "/nonsense", "/save", f"/save {path}", "/clear", "//etc", "", "/exit", "no")
    )
    assert [text for text, _ in loop.asked] == ["hello", "/etc"]
    assert path.read_text() == "user: hello\n"
    shown = capsys.readouterr().err
    assert "No such command, or without its file: /nonsense" in shown
    assert "/clear" in shown and "no answer yet" in shown and "forgotten" in shown


def test_errors_and_interrupts_do_not_end_the_chat(capsys):
    loop = Recorder(conversation())
    loop.run(lines("one", KeyboardInterrupt(), "x" * 500, "/save /no/such/folder/file", "two"))
    assert [text for text, _ in loop.asked] == ["one", "two"]
    assert "does not fit" in capsys.readouterr().err


def test_a_warning_waits_for_the_end_of_the_line_that_it_would_break(monkeypatch, capsys):
    def run_once(llm, ids, params, printer):
        for text in ("to be", " or not"):
            printer(TokenOutput(token_id=0, text=text, provenance="target"))
            warnings.warn(f"a drafter failed:{text}", DrafterWarning, stacklevel=1)
        if len(ids) == len(encode([{"content": "cut it off"}])):
            raise KeyboardInterrupt
        return SimpleNamespace(
            output=SimpleNamespace(text="to be or not", finish_reason="stop", error=None, token_ids=())
        )

    monkeypatch.setattr("paceline.evaluation.report.run_once", run_once)
    shown = io.StringIO()
    for stream in (terminal.output, terminal.messages):
        monkeypatch.setattr(stream, "_file", shown)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = terminal.tell_warning
        ChatLoop(None, SamplingParams(), conversation()).run(lines("cut it off", "ask"))
        assert warnings.showwarning is terminal.tell_warning
    told = "warning: a drafter failed:to be\nwarning: a drafter failed: or not\n"
    cut = "\n(cut off; the question is taken back)\n"
    assert shown.getvalue() == f"to be or not{cut}{told}to be or not\n{told}"


def test_lines_from_a_pipe_have_any_length(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("x" * 100_000 + "\nlast"))
    read = line_reader("you> ", ["/help"])
    assert len(read()) == 100_000
    assert read() == "last"
    with pytest.raises(EOFError):
        read()


def test_a_line_that_is_no_utf8_is_refused_and_the_next_one_read(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\nhello\n"), encoding="utf-8"))
    loop = Recorder(conversation())
    loop.run(line_reader("you> ", []))
    assert [text for text, _ in loop.asked] == ["hello"]
    assert "message: is not valid UTF-8" in capsys.readouterr().err


def test_lines_on_a_terminal_are_edited_and_have_any_length(monkeypatch, tmp_path):
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        read = line_reader("you> ", ["/help"])
        keys.send_text("\x1b[200~" + "y" * 6000 + "\nsecond line\x1b[201~\r")  # a paste of two lines
        assert read() == "y" * 6000 + "\nsecond line"
        keys.send_text("helo\x1b[Dl\r")  # left arrow, then the missing letter
        assert read() == "hello"
        keys.send_text("\x1b[A\x1b[A\r")  # up, up
        assert read() == "y" * 6000 + "\nsecond line"
    assert (tmp_path / "chat_history").stat().st_mode & 0o077 == 0
