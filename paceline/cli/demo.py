"""`paceline demo`: the default model on three prompts, plain and drafted in one run; are the texts equal?"""

import json
from math import prod

import typer
from rich.table import Table

from paceline.cli.options import model as o
from paceline.cli.options.prompts import prompt_ids
from paceline.cli.terminal.runs import is_identical, verdict
from paceline.cli.terminal.streams import messages, show_table
from paceline.types import SamplingParams

CHAT = "Explain in four sentences why the sky is blue and why the sunset is red."
EDIT = """Rewrite this function so that the variable `l` is called `items`. Print the whole function again.

def summary(l):
    total = 0
    for x in l:
        total = total + x
    if len(l) == 0:
        return {"count": 0, "total": 0, "mean": None}
    return {"count": len(l), "total": total, "mean": total / len(l)}
"""
SUMMARISE = """Summarise the text in two sentences, keeping its words where you can.

The harbour bridge was closed to lorries on Monday after an inspection found cracks in two of its eight steel hangers.
The city's chief engineer said that the bridge is safe for cars and bicycles, because the remaining six hangers carry
the load with a wide margin. Repairs will begin in March and take about eleven weeks. Until then lorries must use the
northern ring road, which adds twenty minutes to the way to the port. Shipping companies have asked the city to pay for
the extra fuel, but the mayor answered that the closure protects everybody, lorry drivers first of all.
"""
PROMPTS = {"chat": CHAT, "code edit": EDIT, "summarise": SUMMARISE}


def demo(
    model: o.Model = o.DEFAULT_MODEL,
    draft: o.Draft = o.DEFAULT_DRAFT,
    max_tokens: o.MaxTokens = 96,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    as_json: o.Json = False,
) -> None:
    """Show the main job: the same text, in less time. The exit code is 1 if a text is another.

    Takes about 15 seconds for the default model on two cores; the first time, the model is downloaded and kernels are
    compiled as well.

    Examples:

        paceline demo

        paceline demo --draft ngram --dtype int8
    """
    from paceline.evaluation.report import run_once, warm_up

    llm = o.load_llm(model, o.speculative_config(draft), dtype=dtype, num_threads=threads)
    plain_llm = llm.drafting_with(None)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    drafter, rows = o.drafter_of(llm), []
    if not as_json:
        o.say_dtype(llm, dtype)
    warm_up(plain_llm, llm, token_ids=prompt_ids(llm.tokenizer, CHAT, raw=True))
    for kind, prompt in PROMPTS.items():
        messages.print(f"{kind}: plain, then with {drafter} ...", style="dim")
        ids = prompt_ids(llm.tokenizer, prompt, raw=False)
        rows.append((kind, run_once(plain_llm, ids, params), run_once(llm, ids, params)))
    if as_json:
        print(json.dumps([_record(*row) for row in rows]))
    else:
        _print(rows, model, drafter)
    if not all(is_identical(run, plain) for _, plain, run in rows):
        raise typer.Exit(1)


def _record(kind: str, plain, run) -> dict:
    return {
        "prompt": kind,
        "text": run.output.text,
        "identical": is_identical(run, plain),
        "plain_tokens_per_second": plain.tokens_per_second,
        "tokens_per_second": run.tokens_per_second,
        "acceptance_length": run.output.stats.acceptance_length,
    }


def _print(rows, model: str, draft: str) -> None:
    from paceline.evaluation.report import is_plausible, speedup_of

    table = Table(title=f"{model}: plain decoding and {draft} drafts", title_justify="left")
    for column in ("prompt", "tokens", "plain tok/s", f"{draft} tok/s", "speed-up", "tokens per pass", "same text"):
        table.add_column(column, justify="left" if column == "prompt" else "right")
    for kind, plain, run in rows:
        speedup = speedup_of(run, plain)
        table.add_row(
            kind, str(len(run.output.token_ids)), f"{plain.tokens_per_second:.1f}", f"{run.tokens_per_second:.1f}",
            "-" if speedup is None else f"{speedup:.2f} x", f"{run.output.stats.acceptance_length or 1:.2f}",
            "yes" if is_identical(run, plain) else "NO",
        )  # fmt: skip
    for kind, _, run in rows:
        messages.print(f"\n{kind}", style="bold")
        messages.print(run.output.text.strip())
    messages.print()
    show_table(table)
    speedups = [speedup for _, plain, run in rows if (speedup := speedup_of(run, plain))]
    mean = prod(speedups) ** (1 / len(speedups)) if speedups else None
    is_same, can_be = (all(test(run, plain) for _, plain, run in rows) for test in (is_identical, is_plausible))
    messages.print(verdict(mean, is_same, is_plausible=can_be), soft_wrap=True)
