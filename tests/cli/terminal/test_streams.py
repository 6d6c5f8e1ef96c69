"""Output on a terminal: unchanged text, tables whose numbers are not cut, and words that are not moved later."""

import io
import re
import threading
import time
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from paceline.cli.terminal import streams as cli_terminal
from paceline.cli.terminal.runs import TokenPrinter, verdict, why_cut, why_short
from paceline.cli.terminal.streams import (
    ProgressLines,
    TitledBar,
    _Left,
    messages,
    output,
    progress_bars,
    show_table,
    tell_waiting,
)
from paceline.cli.train.options import training_bars
from paceline.types import TokenOutput

HOSTILE = "[/red]x [bold]y[/] pip install 'paceline[serve]' :smile:"


def screen(width=80, terminal=False):
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, markup=False, highlight=False, emoji=False,
                   color_system=None)  # fmt: skip


def token(text, provenance="target"):
    return TokenOutput(token_id=0, text=text, provenance=provenance)


@pytest.mark.parametrize("console", [output, messages])
def test_foreign_text_is_printed_as_it_stands(console):
    with console.capture() as capture:
        console.print(HOSTILE, style="red", soft_wrap=True)
        table = Table(HOSTILE, title=HOSTILE)
        table.add_row(HOSTILE)
        console.print(table, width=400, soft_wrap=True)
    shown = capture.get()
    assert shown.count("[/red]x") == 4
    assert shown.count("paceline[serve]") == 4


@pytest.mark.parametrize("width", [30, 40, 80, 200])
def test_no_number_of_a_table_is_cut(width):
    table = Table("model of a long name", "attainment of the whole", "tokens per second", "time to the first token")
    numbers = ["0.0412", "1,234,567.89", "93.27 %", "0.12 / 3.45 / 6.78 s"]
    table.add_row("a model whose name is long and has words", *numbers[:3])
    table.add_row("b", *numbers[1:])
    console = screen(width)
    show_table(table, console)
    shown = console.file.getvalue()
    assert "…" not in shown
    for number in numbers[:3]:
        assert number in shown
    for part in ("0.12", "3.45", "6.78"):
        assert part in shown


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_column_of_a_table_is_cut_off(width):
    table = Table("arm", "decoding", "95 %", "end to end", "tokens/pass", "acceptance", "first token (s)", "verdict")
    table.add_row("plain (again)", "1.00", "[0.99, 1.02]", "0.98", "-", "-", "0.003", "the baseline again: noise")
    table.add_row("x", "1.50", "[1.39, 1.62]", "1.48", "2.10", "0.61", "0.003", "faster")
    console = screen(width)
    show_table(table, console)
    shown = console.file.getvalue()
    for word in ("verdict", "faster", "baseline", "noise", "acceptance", "(again)"):
        assert word in shown


@pytest.mark.parametrize("width", [40, 60, 80, 130])
def test_a_table_wider_than_the_terminal_is_printed_in_parts(width):
    """Nothing is wider than the terminal, and every part says which row is which; a file has one table."""
    header = ("arm", "decoding", "95 %", "verdict", "end to end", "tok/s", "tokens/pass", "acceptance", "draft share")
    numbers = ("1.50", "[1.39, 1.62]", "faster", "1.48", "123.4", "2.10", "0.61", "3.2 %")
    table = Table(*header, title="all prompts")
    table.add_row("suffix", *numbers)
    table.add_row("plain (again)", "1.00", "[0.99, 1.02]", "the baseline again: noise", *numbers[3:])
    on_terminal, in_file = screen(width, terminal=True), screen(width)
    show_table(table, on_terminal)
    show_table(table, in_file)
    shown = on_terminal.file.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert shown.count("suffix") == shown.count("arm") == shown.count("┏") == (1 if width == 130 else shown.count("└"))
    assert shown.count("all prompts") == 1
    assert all(number in shown and number in in_file.file.getvalue() for number in numbers)
    assert in_file.file.getvalue().count("suffix") == 1
    if width == 80:
        assert "│ the baseline " in shown


def test_words_that_were_printed_stay_where_they_are():
    console = screen(20, terminal=True)
    printer = TokenPrinter(console)
    words = "the quick brown fox jumps over an uncharacteristically lazy dog, " * 3
    for letter in words:  # a token for each letter: no word is known before it is whole
        printer(token(letter))
    printer.finish()
    lines = console.file.getvalue().splitlines()
    assert " ".join(lines).split() == words.split()
    assert all(len(line) <= 20 or line == "uncharacteristically" for line in lines)


def test_line_breaks_of_the_model_are_kept():
    console = screen(20, terminal=True)
    printer = TokenPrinter(console)
    for text in ("def f", "(x):\n", "    return", " x\n", "\n", "done"):
        printer(token(text))
    printer.finish()
    assert console.file.getvalue() == "def f(x):\n    return x\n\ndone\n"


def test_a_pipe_gets_the_text_itself():
    console = screen(20)
    printer = TokenPrinter(console)
    for text in ("a very long line that no", "body may break, ", "ever\n", "[b]"):
        printer(token(text))
    printer.finish()
    assert console.file.getvalue() == "a very long line that nobody may break, ever\n[b]\n"


@pytest.mark.parametrize(
    ("speedup", "same", "words"),
    [(1.4, True, "pays here: 1.40 x"), (0.89, True, "does not pay here: 0.89 x"), (1.11, True, "pays here: 1.11 x"),
     (1.1, True, "No clear difference in this run: 1.10 x"), (0.9, True, "No clear difference in this run: 0.90 x"),
     (None, True, "Too short"), (1.5, False, "texts differ")],
)  # fmt: skip
def test_the_verdict_says_what_the_figures_mean(speedup, same, words):
    assert words in verdict(speedup, same)


def test_no_verdict_is_given_on_what_drafts_cannot_cause():
    said = verdict(5.83, True, is_plausible=False)
    assert "No verdict" in said and "5.83 x" in said and "pays" not in said
    assert "texts differ" in verdict(5.83, False, is_plausible=False)


@pytest.mark.parametrize(("same", "words"), [(False, "lossy"), (True, "same text")])
def test_a_lossy_rule_is_not_said_to_keep_the_law(same, words):
    said = verdict(1.5, same, is_lossy=True)
    assert words in said and "same law" not in said


def answer(text, reason, error=None):
    return SimpleNamespace(text=text, finish_reason=reason, error=error)


def test_an_answer_that_ends_at_once_says_why():
    assert "end-of-sequence" in (why_short(answer(" \n", "stop")) or "")
    assert "length" in (why_short(answer("", "length")) or "")
    assert why_short(answer("yes", "stop")) is None


@pytest.mark.parametrize(
    ("reason", "count", "words"),
    [
        ("length", 8, "cut at 8 tokens (-n)"),
        ("length", 5, "the context of prompt and answer is full"),
        ("stop", 8, None),
    ],
)
def test_an_answer_that_is_cut_says_by_what(reason, count, words):
    said = why_cut(SimpleNamespace(finish_reason=reason, token_ids=(1,) * count), 8)
    assert said is None if words is None else words in (said or "")


def test_somebody_who_watches_is_told_what_takes_long(monkeypatch):
    for terminal in (True, False):
        console = screen(terminal=terminal)
        monkeypatch.setattr(cli_terminal, "messages", console)
        tell_waiting("plain decoding first ...")
        assert ("plain decoding" in console.file.getvalue()) is terminal


def test_an_answer_that_failed_says_what_went_wrong():
    failed = answer("half an ans", "error", "ValueError: [/red]x")
    assert "ValueError: [/red]x" in (why_short(failed) or "")


def test_a_bar_says_when_it_will_be_done():
    ticks = iter(range(0, 1000, 10))
    with Progress(_Left(), console=screen(60), get_time=lambda: float(next(ticks)), auto_refresh=False) as bars:
        task = bars.add_task("training", total=100)
        assert str(_Left().render(bars.tasks[0])) == ""
        for done in (10, 20, 30):
            bars.update(task, completed=done)
        assert re.fullmatch(r"about 0:0\d:\d\d left", str(_Left().render(bars.tasks[0])))


def test_an_ended_training_says_how_to_go_on():
    with messages.capture() as capture, pytest.raises(KeyboardInterrupt), training_bars():
        raise KeyboardInterrupt("3 updates are kept; start the same command again to go on")
    assert "3 updates are kept" in capture.get()


def test_a_line_says_what_goes_on_how_far_it_is_and_how_long_it_takes():
    now = 100.0
    lines = ProgressLines(lambda: now)
    assert lines.line() is None
    lines("fetching", 0, 200)
    now += 30
    assert lines.line() == "fetching: 0 %, 0:30 passed"
    lines("fetching", 50, 200)
    assert lines.line() == "fetching: 25 %, 0:30 passed, about 1:30 left"
    lines("preparing kernels", 0, 1)
    now += 45
    assert lines.line() == "preparing kernels: 1:15 passed"
    lines("preparing kernels", 1, 1)
    assert str(lines.line()).startswith("fetching: 25 %")
    lines("fetching", 200, 200)
    assert lines.line() is None


def test_the_time_left_counts_from_where_a_resumed_run_began():
    now = 0.0
    lines = ProgressLines(lambda: now)
    lines("training", 90, 100)
    now = 60.0
    lines("training", 95, 100)
    assert lines.line() == "training: 95 %, 1:00 passed, about 1:00 left"


@pytest.fixture
def told(monkeypatch):
    """What goes to standard error, which is a terminal or not; lines come every millisecond."""

    def start(terminal, seconds=0.001):
        console = screen(200, terminal=terminal)
        monkeypatch.setattr(cli_terminal, "messages", console)
        slow = cli_terminal._progress_lines
        monkeypatch.setattr(cli_terminal, "_progress_lines", lambda: slow(seconds))
        return console.file.getvalue

    return start


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


def test_a_file_gets_plain_lines_even_while_nothing_is_reported(told):
    shown = told(terminal=False)
    with progress_bars() as progress:
        progress("converting [x]", 1, 4)
        assert wait_for(lambda: shown().count("\n") >= 3)
    lines = shown().splitlines()
    assert all(re.fullmatch(r"converting \[x\]: 25 %, \d+:\d\d passed", line) for line in lines), lines
    assert "\x1b" not in shown()


def test_quick_work_says_nothing_to_a_file_and_lines_end_with_the_work(told):
    shown = told(terminal=False, seconds=3600)
    with progress_bars() as progress:
        progress("quick", 0, 2)
        progress("quick", 2, 2)
    assert shown() == ""
    assert "paceline-progress" not in [thread.name for thread in threading.enumerate()]


def test_a_terminal_gets_bars_and_no_lines(told):
    shown = told(terminal=True)
    with progress_bars() as progress:
        progress("converting", 1, 4)
        assert wait_for(lambda: "converting" in shown())
    assert "25 %" in shown() and "passed" not in shown()


def test_a_bar_changes_its_title():
    seen = []
    bar = TitledBar(lambda *now: seen.append(now))
    for title, done in (("training", 0), ("training", 1), ("training (EAL 1.20)", 2)):
        bar(title, done, 9)
    assert seen == [("training", 0, 9), ("training", 1, 9), ("training", 1, 1), ("training (EAL 1.20)", 2, 9)]
