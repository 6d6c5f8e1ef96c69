"""Output on a terminal: unchanged text, tables whose numbers are not cut, and words that are not moved later."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from paceline.cli import terminal as cli_terminal
from paceline.cli.show import TokenPrinter, verdict, why_cut, why_short
from paceline.cli.terminal import _Left, messages, output, show_table, tell_waiting
from paceline.cli.train_options import training_bars
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
    [(1.4, True, "pays here: 1.40 x"), (0.93, True, "does not pay here: 0.93 x"), (1.01, True, "no difference"),
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
