"""`paceline bench`: ways of decoding side by side on your prompts, with intervals and the machine's own noise."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable

from paceline.cli.options import model as o
from paceline.cli.options.groups import Machine, grouped
from paceline.cli.options.sizes import bytes_of
from paceline.cli.terminal.streams import messages, output, progress_bars, show_table
from paceline.config import SpeculativeConfig
from paceline.disk import check_placed_file
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.evaluation.bench.arms import Arm, Cell
    from paceline.evaluation.bench.record import BenchFile
    from paceline.evaluation.bench.run import Plan
    from paceline.evaluation.bench.summary import Table

WHAT, STOP, FILES = "What is measured", "When it ends", "Files"


@dataclass(frozen=True, slots=True)
class Prompts:
    """What is asked, and how it is answered."""

    prompts: Annotated[
        str,
        o.option(
            WHAT,
            "--prompts",
            help="builtin, a .jsonl or .txt file, spec-bench:PATH, speed-bench:PATH or long:PATH@8000.",
        ),
    ] = "builtin"
    families: Annotated[str | None, o.option(WHAT, "--families", help="a,b,c: only these kinds of prompts.")] = None
    per_family: Annotated[int | None, o.option(WHAT, "--per-family", help="Most prompts of each kind.")] = None
    turns: Annotated[str, o.option(WHAT, "--turns", help="first or all turns of a conversation.")] = "first"
    temperature: Annotated[str, o.option(WHAT, "--temperature", "-t", help="0,1: a table for each.")] = "0"
    concurrency: Annotated[
        str, o.option(WHAT, "--concurrency", "-c", help="1,8: requests at once, a table for each.")
    ] = "1"
    rate: Annotated[
        str | None,
        o.option(WHAT, "--rate", help="1,2.5: requests a second that arrive whatever is under way, a table for each."),
    ] = None
    slo: Annotated[
        str | None, o.option(WHAT, "--slo", help="ttft=1s,tpot=80ms: count the answers that keep these times.")
    ] = None
    max_tokens: o.MaxTokens = o.DEFAULT_MAX_TOKENS
    ignore_eos: Annotated[bool, o.option(WHAT, "--ignore-eos", help="Go on after the end of the answer.")] = False
    seed: Annotated[int, o.option(WHAT, "--seed", help="Of sampled answers.")] = 0
    unseeded: Annotated[
        bool, o.option(WHAT, "--unseeded", help="Sample without seeds: most drawn drafts are then judged by p/q.")
    ] = False
    raw: o.Raw = False

    def cells(self) -> "list[Cell]":
        """The cells to measure, in order."""
        from paceline.evaluation.bench.run import cells_of, open_cells_of
        from paceline.evaluation.bench.summary import ALL
        from paceline.evaluation.prompts import load_prompts

        if self.turns not in ("first", "all"):
            raise InvalidParameter("turns", f"{self.turns!r} is unknown", "use first or all")
        chosen = load_prompts(self.prompts, o.names(self.families), self.per_family, self.turns == "all")
        if {prompt.family for prompt in chosen} > {ALL}:
            problem = f"{self.prompts} has a category {ALL!r} beside others, the name of the table of all prompts"
            raise InvalidParameter("prompts", problem, "give that category another name, or choose --families")
        own = None if self.unseeded else self.seed
        if self.rates and self.at_once != [1]:
            raise InvalidParameter("rate", "arrivals decide how many run at once", "leave out --concurrency")
        if self.rates:
            return open_cells_of(chosen, self.rates, self.temperatures, own, self.max_tokens, self.ignore_eos)
        return cells_of(chosen, self.temperatures, self.at_once, own, self.max_tokens, self.ignore_eos)

    @property
    def temperatures(self) -> list[float]:
        """A table for each."""
        return o.distinct_numbers("temperature", self.temperature, float)

    @property
    def rates(self) -> list[float]:
        """A table for each, in an open loop."""
        return [] if self.rate is None else o.distinct_numbers("rate", self.rate, float)

    @property
    def at_once(self) -> list[int]:
        """A table for each."""
        return o.distinct_numbers("concurrency", self.concurrency, int)


@dataclass(frozen=True, slots=True)
class Arms:
    """What is compared."""

    drafts: Annotated[str, o.option(WHAT, "--drafts", help="a,b,c: drafters; NAME:MODEL lends a draft model.")] = (
        "ngram,suffix"
    )
    spec: Annotated[
        list[str] | None, o.option(WHAT, "--spec", help='LABEL={"method": ...}: a configuration; repeatable.')
    ] = None
    num_draft_tokens: Annotated[
        str | None, o.option(WHAT, "--num-draft-tokens", "-k", help="2,4,8: an arm of every drafter for each.")
    ] = None
    url: Annotated[
        list[str] | None, o.option(WHAT, "--url", help="LABEL=URL[#MODEL]: an OpenAI server as an arm; repeatable.")
    ] = None
    plain_url: Annotated[
        list[str] | None, o.option(WHAT, "--plain-url", help="LABEL=URL: the same server without speculation.")
    ] = None
    rule: Annotated[str | None, o.option(WHAT, "--rule", help="Verification; see docs/exactness.md.")] = None
    policy: Annotated[str | None, o.option(WHAT, "--policy", help="Draft length.")] = None

    def specs(self) -> dict[str, dict[str, Any]]:
        """Label to configuration of the arms on this machine, whose drafters exist."""
        from paceline.drafters.registry import check_drafter
        from paceline.evaluation.bench.own_arms import AGAIN, PLAIN, specs_of

        lengths = self.num_draft_tokens
        every = [] if lengths is None else o.distinct_numbers("num_draft_tokens", lengths, int)
        if min(every, default=1) < 1:
            remedy = "write e.g. 2,4,8; plain decoding is measured beside them"
            raise InvalidParameter("num_draft_tokens", f"{lengths!r} has a number below 1", remedy)
        drafts, texts, taken = o.names(self.drafts), self.spec or [], (PLAIN, AGAIN)
        if not (drafts or texts or self.url):
            raise InvalidParameter("drafts", "names no drafter", "name some, or give --spec or --url")
        found = specs_of(drafts, every, texts, taken, rule=self.rule, policy=self.policy)
        for label, spec in found.items():
            try:
                check_drafter(SpeculativeConfig.of(spec))
            except InvalidParameter as error:
                if error.field != "model" or spec.get("model") is not None:
                    raise
                remedy = "name it with the drafter, as in --drafts draft_model:small.gguf"
                raise InvalidParameter("drafts", f"{label} needs a model", remedy) from None
        return found


@dataclass(frozen=True, slots=True)
class Stop:
    """When it ends, and with which exit code."""

    rounds: Annotated[int, o.option(STOP, "--rounds", help="Times all prompts are asked, each from a cold start.")] = 1
    minutes: Annotated[float | None, o.option(STOP, "--minutes", help="No prompt begins after these.")] = None
    precision: Annotated[
        str | None, o.option(STOP, "--precision", help="3%: stop when every interval is this narrow, +- its ratio.")
    ] = None
    gate: Annotated[
        list[str] | None, o.option(STOP, "--gate", help="ARM>=RATIO[@FAMILY]: exit 1 unless its interval shows it.")
    ] = None

    @property
    def narrow(self) -> float | None:
        """`precision` as a fraction."""
        return None if self.precision is None else o.share("precision", self.precision)


@dataclass(frozen=True, slots=True)
class Files:
    """Where results go."""

    resume: Annotated[
        Path | None, o.option(FILES, "--resume", "-o", help="Keep every answer in this .jsonl; go on where it ends.")
    ] = None
    html: Annotated[Path | None, o.option(FILES, "--html", help="One page with plots, readable without network.")] = (
        None
    )
    markdown: Annotated[Path | None, o.option(FILES, "--markdown", help="The tables, for a document.")] = None
    as_json: o.Json = False


@dataclass(frozen=True, slots=True)
class BenchMachine(Machine):
    """How own configurations run."""

    kv_cache_memory_bytes: o.CacheBytes = None

    def engine(self) -> dict[str, Any]:
        """Keyword arguments for `LLM`."""
        room = bytes_of("kv_cache_memory_bytes", self.kv_cache_memory_bytes)
        return Machine.engine(self) | {"kv_cache_memory_bytes": room}


@grouped
def bench(
    model: o.ModelOrServers = o.DEFAULT_MODEL,
    *,
    asked: Prompts,
    compared: Arms,
    stop: Stop,
    files: Files,
    machine: BenchMachine,
) -> None:
    """Measure drafters, configurations and servers side by side, and say whether speculation pays.

    Every prompt is answered by all arms before the next one, in balanced orders. Plain decoding always runs twice: what
    lies between the two is the noise of the machine, and is printed. Ratios have 95 % intervals
    from how much they change when one prompt is left out; under 6 prompts there is none. Takes about five minutes
    for the default model and options on two cores; --minutes and --per-family bound it.

    Examples:

        paceline bench --minutes 5

        paceline bench --prompts spec-bench:spec_bench.jsonl --per-family 8 --drafts ngram,suffix -o run.jsonl

        paceline bench target.gguf --drafts draft_model:small.gguf -k 2,4,8 --temperature 0,1 --html run.html

        paceline bench none --url vllm=http://localhost:8000 --plain-url vllm=http://localhost:8001 --precision 3%

        paceline bench --drafts suffix --gate 'suffix>=1.2@copying' --json
    """
    from paceline.evaluation.bench.gate import Gate
    from paceline.evaluation.bench.own_arms import bases_of
    from paceline.evaluation.bench.record import BenchFile
    from paceline.evaluation.bench.run import Plan, run_bench
    from paceline.evaluation.bench.slo import Slo
    from paceline.evaluation.bench.summary import idle_arms, tables_of
    from paceline.evaluation.provenance import provenance

    gates, specs = [Gate.of(text) for text in stop.gate or []], compared.specs()
    slo = Slo.of(asked.slo) if asked.slo is not None else None
    plan = Plan(asked.cells(), stop.rounds, stop.minutes, stop.narrow)
    for name, path in (("resume", files.resume), ("html", files.html), ("markdown", files.markdown)):
        if path is not None:
            check_placed_file(name, path)
    arms, skipped, dtype = _arms(model, specs, compared, asked.raw, machine, plan.cells)
    known = {"model": model, "dtype": dtype}
    for gate in gates:
        gate.check([arm.label for arm in arms], {cell.family for cell in plan.cells})
    file = BenchFile(files.resume, known | _settings(asked, compared, machine, arms, plan))
    with progress_bars() as progress:
        ended = run_bench(arms, plan, file, progress)
    if not file.measurements:
        if ended == "minutes":
            problem = f"{stop.minutes:g} were over before the first prompt was answered by every arm"
            raise InvalidParameter("minutes", problem, "give more, or leave it out for no limit")
        messages.print("stopped before the first prompt was answered by every arm")
        raise typer.Exit(130)
    tables = tables_of(file.measurements, *bases_of(arms), stop.narrow, slo)
    more = known | {
        "drafted_nothing": idle_arms(file.measurements, *bases_of(arms)),
        "ended": ended, "resumed": file.num_resumed, "skipped": skipped, "precision": stop.narrow,
        "provenance": provenance(),
    }  # fmt: skip
    _write(tables, file, more, files)
    failures = [failure for each in gates for failure in each.failures(tables)]
    _tell(tables, more, failures, files.as_json)
    if failures:
        raise typer.Exit(1)


def _settings(asked: Prompts, compared: Arms, machine: BenchMachine, arms: "list[Arm]", plan: "Plan") -> dict[str, Any]:
    """All settings that affect the measurements, by option; a resumed run must have the same."""
    from paceline.evaluation.bench.record import digest_of

    given = asdict(asked) | asdict(compared) | asdict(machine)
    told = ("families", "per_family", "turns", "slo")  # by the digest of the prompts; times are judged afterwards
    return {name: value for name, value in given.items() if name not in told} | {
        "prompts": digest_of(plan.cells), "temperature": asked.temperatures, "concurrency": asked.at_once,
        "rate": asked.rates, "rounds": plan.rounds, "arms": [arm.label for arm in arms],
    }  # fmt: skip


def _tell(tables: "list[Table]", more: dict[str, Any], failures: list[str], as_json: bool) -> None:
    """Print tables with verdicts, or one JSON object; remarks go to standard error."""
    from paceline.evaluation.bench import show
    from paceline.evaluation.bench.summary import ALL

    if as_json:
        print(json.dumps(show.as_json(tables, **more, gate_failures=failures)))
    for table in () if as_json else tables:
        _print(table)
        if table.family == ALL:
            output.print(show.verdict_of(table), soft_wrap=True)
    for label in more["drafted_nothing"]:
        messages.print(f"{label} drafted nothing: its speculation is off, or these prompts give it nothing to draft")
    for failure in failures:
        messages.print(f"gate: {failure}", style="red", soft_wrap=True)


def _arms(
    model: str, specs: dict[str, dict[str, Any]], compared: Arms, raw: bool, machine: BenchMachine,
    cells: "Sequence[Cell]",
) -> tuple[list["Arm"], dict[str, str], str | None]:  # fmt: skip
    """(all arms, label to error of those skipped, dtype of those on this machine).

    Raises:
        InvalidParameter: nothing can be compared, or the model cannot read a prompt of `cells`.
    """
    from paceline.evaluation.bench.own_arms import AGAIN, PLAIN, own_arms, url_arms
    from paceline.evaluation.bench.server_arm import answers_from_a_cache
    from paceline.evaluation.prompts import ids_of

    arms: list[Arm] = []
    skipped: dict[str, str] = {}
    dtype = None
    own = () if model == o.NONE else (PLAIN, AGAIN, *specs)
    servers = url_arms(compared.url or [], compared.plain_url or [], raw, own)
    if model != o.NONE:
        llm = o.load_llm(model, None, **machine.engine())
        dtype = llm.dtype
        ids_of(llm, dict.fromkeys(text for cell in cells for text in cell.prompts), raw)  # refuses what is too long
        arms, skipped = own_arms(llm, specs, raw)
    for arm in servers:
        if answers_from_a_cache(arm.server, raw):
            messages.print(
                f"{arm.label} answers a repeated prompt in less than half the time: start it without a cache"
            )
    arms += servers
    if not arms:
        raise InvalidParameter("url", "there is neither a model nor a server", "name a model, or --url and --plain-url")
    if specs and len(skipped) == len(specs) and not servers:
        label, why = next(iter(skipped.items()))
        remedy = "name a drafter that runs here, with its model where it has one: --drafts draft_model:small.gguf"
        raise InvalidParameter("drafts", f"nothing is left to compare: {label}: {why}", remedy)
    for label, why in skipped.items():
        messages.print(f"without {label}: {why}", soft_wrap=True)
    return arms, skipped, dtype


def _write(tables: list["Table"], file: "BenchFile", more: dict[str, Any], files: Files) -> None:
    """Write the requested files."""
    from paceline.evaluation.bench import show

    if files.html:
        title = f"paceline bench: {more['model']}"
        files.html.write_text(show.page(title, tables, file.measurements, more), encoding="utf-8")
        messages.print(f"page: {files.html}")
    if files.markdown:
        files.markdown.write_text(show.markdown(tables), encoding="utf-8")


def _print(table: "Table") -> None:
    from paceline.evaluation.bench import show

    shown = RichTable(*show.header_of(table), title=show.title_of(table), title_justify="left")
    for row in show.rows_of(table):
        shown.add_row(*row)
    show_table(shown, output)
