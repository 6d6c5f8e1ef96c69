"""How runs look on a terminal: coloured tokens while they stream, a closing table behind them."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.evaluation.report import Run, describe
from paceline.types import TokenOutput

STYLES = {"drafted": "green", "bonus": "cyan", "recovered": "yellow", "target": ""}
LEGEND = Text.assemble(
    ("drafted and accepted", "green"), "  ", ("bonus", "cyan"), "  ", ("recovered", "yellow"), "  the target's own"
)


class TokenPrinter:
    """Prints tokens as they come, drafted ones apart from the target's own."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, token: TokenOutput) -> None:
        style = STYLES.get(token.provenance) or None
        self._console.print(token.text, style=style, end="", markup=False, highlight=False, soft_wrap=True)


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
    """Token for token the same answer."""
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
