"""How runs look on a terminal: coloured tokens while they stream, then a table and a line that says what it means."""

import re

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.evaluation.report import Run, describe, without_cause
from paceline.types import RequestOutput, TokenOutput

STYLES = {"drafted": "green", "bonus": "cyan", "recovered": "yellow", "target": ""}
LEGEND = Text.assemble(
    ("drafted and accepted", "green"), "  ", ("bonus", "cyan"), "  ", ("recovered", "yellow"), "  the target's own"
)
_PIECES = re.compile(r"\n|[^\S\n]+|\S+")
_UNCLEAR = (0.9, 1.1)
"""Speed-ups between these are no verdict: of 24 pairs of plain runs (96 tokens each, the default model, two cores that
other programs used as well) 19 differed by less, and the ratio's standard deviation was 8 %."""


class TokenPrinter:
    """Prints tokens as they come, drafted ones apart from the target's own.

    On a terminal a word is printed once it is whole, on the next line where it does not fit: nothing that was printed
    moves. Elsewhere the text goes out as it is. Call `finish` at the end.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._column = 0
        self._gap = ""
        self._word: list[tuple[str, str]] = []

    def __call__(self, token: TokenOutput) -> None:
        style = STYLES.get(token.provenance, "")
        if not self._console.is_terminal:
            self._print(Text(token.text, style))
            return
        for piece in _PIECES.findall(token.text):
            if not piece.isspace():
                self._word.append((piece, style))
                continue
            self._flush()
            if piece == "\n":
                self._print(Text("\n"))
                self._column, self._gap = 0, ""
            else:
                self._gap += piece

    def finish(self) -> None:
        """Print the last word, and end the line."""
        self._flush()
        self._print(Text("\n"))

    def _flush(self) -> None:
        if not self._word:
            return
        word = Text.assemble(*self._word)
        size, width = cell_len(word.plain), self._console.width
        if self._column and self._column + len(self._gap) + size > width:
            self._gap, self._column = "\n", 0
        self._print(Text.assemble(self._gap, word))
        end = self._column + len(self._gap.strip("\n")) + size
        self._column = end if end <= width else end % width
        self._gap, self._word = "", []

    def _print(self, text: Text) -> None:
        self._console.print(text, end="", soft_wrap=True)


def why_short(output: RequestOutput) -> str | None:
    """A sentence on why an answer failed or has no tokens; None for all others."""
    if output.error is not None:
        return f"The request failed, and what it had said before is above: {output.error}"
    if output.text.strip():
        return None
    if output.finish_reason == "stop":
        return (
            "The model ended its answer at once, with its end-of-sequence token or a stop string. Ask it otherwise; "
            "`paceline generate` can go on past the end with --ignore-eos, and should not have --raw with a chat model."
        )
    return f"The answer holds no visible text; it ended by {output.finish_reason}."


def why_cut(output: RequestOutput, max_tokens: int) -> str | None:
    """What ended an answer that its length ended; None for all others."""
    count = len(output.token_ids)
    if output.finish_reason != "length":
        return None
    if count < max_tokens:
        return f"cut after {count} tokens: the context of prompt and answer is full"
    return f"cut at {count} tokens (-n)"


def verdict(speedup: float | None, is_same: bool, is_lossy: bool = False, is_plausible: bool = True) -> str:
    """The line under a comparison: whether drafting pays.

    Args:
        is_lossy: the rule may have changed the law of the text (`CompletionOutput.lossy`).
        is_plausible: whether drafts can explain the speed-up (`report.is_plausible`).
    """
    if not is_same and is_lossy:
        return "The texts differ: this rule is lossy, it changes what the model says (docs/exactness.md)."
    if not is_same:
        return "The texts differ: this rule promises the same law, not the same text (docs/exactness.md)."
    if speedup is None:
        return "Too short to say whether drafting pays: no token was decoded after the first."
    if not is_plausible:
        advice = "Measure again on an idle machine, or with `paceline bench`. The text is the same."
        return f"{without_cause(speedup)} {advice}"
    if _UNCLEAR[0] <= round(speedup, 2) <= _UNCLEAR[1]:
        advice = "One run can be off by a tenth; `paceline bench` measures more, with intervals."
        return f"No clear difference in this run: {speedup:.2f} x, same text. {advice}"
    if speedup > 1:
        return f"Drafting pays here: {speedup:.2f} x the tokens per second of plain decoding, same text."
    return f"Drafting does not pay here: {speedup:.2f} x. The text is the same with --draft none, and sooner."


def closing_table(run: Run, plain: Run | None, draft: str) -> Table:
    """What a run cost and gained; the plain run beside it when there was one."""
    figures = describe(run, plain)
    table = Table(show_header=plain is not None, title_justify="left")
    table.add_column("")
    table.add_column(draft, justify="right")
    rows = [
        ("tokens/s (decoding)", _number(run.tokens_per_second), plain and _number(plain.tokens_per_second)),
        ("time to first token", _seconds(run.first_token_seconds), plain and _seconds(plain.first_token_seconds)),
        ("passes of the target", str(figures["target_passes"]), plain and str(plain.output.stats.num_target_passes)),
        ("acceptance length", _number(figures["acceptance_length"]), plain and "1.00"),
        ("acceptance rate", _number(figures["acceptance_rate"]), plain and "-"),
        ("draft / verify / the rest", _split(run), plain and _split(plain)),
    ]
    if run.output.lossy:
        rows.append(("lossy", "yes", plain and ""))
    if plain is not None:
        table.add_column("plain", justify="right")
        rows += [
            ("speed-up, measured", _times(figures["speedup"]), ""),
            ("speed-up, theory", _times(figures["predicted_speedup"]), ""),
            ("same text", "yes" if is_identical(run, plain) else "NO", ""),
        ]
    for row in rows:
        table.add_row(*(cell for cell in row if cell is not None))
    return table


def is_identical(run: Run, plain: Run) -> bool:
    """Whether two runs have the same output tokens."""
    return run.output.token_ids == plain.output.token_ids


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} x"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms"


def _split(run: Run) -> str:
    stats = run.output.stats
    return " / ".join(f"{s:.2f}" for s in (stats.draft_seconds, stats.verify_seconds, stats.other_seconds)) + " s"
