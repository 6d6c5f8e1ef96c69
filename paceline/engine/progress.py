"""A progress bar over requests, with finished requests and tokens per second. On standard error."""

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from paceline.types import RequestOutput


def watched(outputs: Iterable[RequestOutput], total: int) -> Iterator[RequestOutput]:
    """Yield `outputs` as they arrive while showing a progress bar over `total` requests."""
    speed = TextColumn("{task.fields[tokens]} tokens, {task.fields[rate]:.1f} tok/s")
    columns = ("generating", BarColumn(), MofNCompleteColumn(), speed, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("generating", total=total, tokens=0, rate=0.0)
        num_tokens = 0
        for output in outputs:
            num_tokens += sum(len(each.token_ids) for each in output.outputs)
            rate = num_tokens / max(bar.tasks[0].elapsed or 0.0, 1e-9)
            bar.update(task, advance=1, tokens=num_tokens, rate=rate)
            yield output
