"""Which drafter wins on which kind of text: tokens per pass, acceptance, what drafting costs, speed-up.

Every prompt is decoded by every drafter before the next prompt begins, in an order that rotates, on the same loaded
weights; a speed-up is the ratio of decoding rates on the same prompt, and a family's is the geometric mean of its
prompts'. The prompts file has Spec-Bench's layout ({"category": ..., "turns": [...]}, the first turn is used); its
eight chat categories count as one family. With --long, the beginning of a text is the prompt, at several lengths.

    python benchmarks/drafters.py --prompts spec_bench.jsonl --per-family 5 --temperature 0,1 --minutes 30
    python benchmarks/drafters.py --prompts spec_bench.jsonl --families qa,translation --rounds 4
    python benchmarks/drafters.py --prompts p.jsonl -m big.gguf --draft-model small.gguf --drafters suffix,hybrid
    python benchmarks/drafters.py --prompts p.jsonl --spec 'bushy={"method": "suffix", "options": {"mode": "tree"}}'
    python benchmarks/drafters.py --long novel.txt --contexts 2048,4096 --drafters sparse_cache --plot long.png

Families take turns, so that --minutes (shared evenly by the temperatures) or Ctrl-C leaves a table of whole rounds.
Every temperature and every one of --rounds begins with drafters that remember nothing: suffix must not find the answer
that was given before. Drafters that cannot run here (no draft model, another vocabulary, an error) are named and left
out. Draft cost: milliseconds per emitted token, and the share of a decoding step. The last line of standard output is
one JSON object.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from common import console, figures, finish, prompt_ids, read_prompts, rotated, show, summarise
from rich.progress import track

from paceline import LLM, SamplingParams
from paceline.drafters.registry import drafter_names, option_names
from paceline.errors import PacelineError
from paceline.evaluation.report import Run, run_once
from paceline.theory.curves import Chart, Series
from paceline.theory.plots import draw

CHAT = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
"""MT-Bench's categories, which Spec-Bench counts as one family."""
HEADER = ["family", "drafter", "tokens/pass", "acceptance", "draft ms/token", "draft share", "speed-up", "same text"]


@dataclass(frozen=True)
class Job:
    """One prompt at one temperature."""

    family: str
    ids: list[int]
    temperature: float


def main() -> None:
    args = parse()
    model = LLM(args.model, dtype=args.dtype, num_threads=args.threads, **engine_options(args))
    jobs = list(long_jobs(model, args) if args.long else prompt_jobs(model, args))
    records: list[dict] = []
    skipped: dict[str, str] = {}
    try:
        for temperature in args.temperature:
            for record in measure_all(model, [j for j in jobs if j.temperature == temperature], skipped, args):
                records.append(record)  # one by one: what was measured stays when it is stopped
    except KeyboardInterrupt:
        console.print("[yellow]stopped; this is what there is")
    if records:
        report(records, skipped, args)


def measure_all(model: LLM, jobs: Sequence[Job], skipped: dict[str, str], args: argparse.Namespace) -> Iterator[dict]:
    """A record per job and round, until this temperature's share of the time is used up."""
    started = time.monotonic()
    plain = model.drafting_with({"method": "plain", "num_draft_tokens": 0, "rule": args.rule})
    llms: dict[str, LLM] = {}
    work = [job for _ in range(args.rounds) for job in jobs]
    for number, job in enumerate(track(work, f"temperature {jobs[0].temperature:g}", console=console)):
        if number % len(jobs) == 0:
            llms = {"plain": plain} | drafters_of(model, skipped, args)
        if number == 0:
            announce(llms, work, args)
        if args.minutes and time.monotonic() - started > 60 * args.minutes / len(args.temperature):
            console.print(f"[yellow]time is up after {number} of {len(work)} prompts")
            return
        record = measure(number, job, llms, skipped, args)
        if args.save:
            with args.save.open("a") as file:
                file.write(json.dumps(record) + "\n")
        yield record


def announce(llms: dict[str, LLM], jobs: Sequence[Job], args: argparse.Namespace) -> None:
    """Say how much work there is, from the pace of plain decoding."""
    run = run_once(llms["plain"], jobs[0].ids, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
    seconds = run.first_token_seconds * sum(len(job.ids) for job in jobs) / len(jobs[0].ids)
    seconds += len(jobs) * args.max_tokens / run.tokens_per_second
    text = f"{len(jobs)} prompts x {len(llms)} ways of drafting, at most {args.max_tokens} tokens each: "
    text += f"about {len(llms) * seconds / 60:.0f} minutes if all were as slow as plain decoding"
    console.print(text + (f", {args.minutes:g} minutes at most" if args.minutes else ""), highlight=False)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    return {} if args.kv_cache_memory is None else {"kv_cache_memory_bytes": int(args.kv_cache_memory * 2**30)}


def specs(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Label to the speculative configuration of every drafter that was asked for."""
    wanted: dict[str, dict[str, Any]] = {name: {"method": name} for name in args.drafters if name != "plain"}
    for text in args.spec:
        label, _, config = text.partition("={")
        wanted[label] = json.loads("{" + config)
    for config in wanted.values():
        config.setdefault("rule", args.rule)
        config.setdefault("policy", args.policy)
        if args.num_draft_tokens is not None:
            config.setdefault("num_draft_tokens", args.num_draft_tokens)
        if args.draft_model:
            lend_model(config, args.draft_model, args.draft_dtype)
    return wanted


def lend_model(config: dict[str, Any], model: str, dtype: str | None) -> None:
    """Put the draft model, stored as `dtype`, where the drafter takes one and names none."""
    takes, given = option_names(config["method"]), config.get("options", {})
    if "model" in takes:
        config.setdefault("model", model)
    lent: dict[str, Any] = {"dtype": dtype} if dtype else {}
    if "models" not in given:
        lent |= {"models": [model]} | ({"dtypes": [dtype]} if dtype else {})
    config["options"] = {name: value for name, value in lent.items() if name in takes} | given


def drafters_of(model: LLM, skipped: dict[str, str], args: argparse.Namespace) -> dict[str, LLM]:
    """An LLM per drafter that works, warmed up; the others, and why, go to `skipped`."""
    llms = {}
    for label, config in specs(args).items():
        try:
            llm = model.drafting_with(config)
            llm.generate([[1] * 8], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
            llms[label] = llm
        except Exception as error:  # whatever is wrong with one drafter, the others are measured
            leave_out(label, error, skipped)
    return llms


def leave_out(label: str, error: Exception, skipped: dict[str, str]) -> None:
    if label not in skipped:
        console.print(f"[yellow]without {label}:[/] {error}", highlight=False)
    skipped[label] = str(error) if isinstance(error, PacelineError) else repr(error)


def prompt_jobs(llm: LLM, args: argparse.Namespace) -> Iterator[Job]:
    """The first `--per-family` prompts of every family, at every temperature."""
    families: dict[str, list[list[int]]] = defaultdict(list)
    for prompt in read_prompts(args.prompts):
        family = "conversation" if prompt["category"] in CHAT else prompt["category"]
        if family in (args.families or [family]) and len(families[family]) < args.per_family:
            families[family].append(prompt_ids(llm, prompt["text"], args.raw))
    for temperature in args.temperature:
        for in_turn in zip_longest(*families.values()):
            yield from (Job(family, ids, temperature) for family, ids in zip(families, in_turn, strict=True) if ids)


def long_jobs(llm: LLM, args: argparse.Namespace) -> Iterator[Job]:
    """`--per-family` stretches of the text, one after the other, at every length and temperature."""
    ids = llm.tokenizer.encode(args.long.read_text(encoding="utf-8"))
    needed, room = max(args.contexts) + args.max_tokens, llm.engine.scheduler.config.max_model_len
    if needed > room:
        raise SystemExit(f"--contexts: {needed} tokens, {room} fit; raise --kv-cache-memory, or take fewer")
    for temperature in args.temperature:
        for length in args.contexts:
            for part in range(args.per_family):
                stretch = ids[part * length : (part + 1) * length]
                if len(stretch) < length:
                    raise SystemExit(f"{args.long} has {len(ids)} tokens, too few for {args.per_family} x {length}")
                yield Job(f"{length:6d} tokens", stretch, temperature)


def measure(number: int, job: Job, llms: dict[str, LLM], skipped: dict[str, str], args: argparse.Namespace) -> dict:
    """One job by every drafter; one that fails leaves `llms`."""
    params = SamplingParams(
        temperature=job.temperature, seed=args.seed + number, max_tokens=args.max_tokens, ignore_eos=args.ignore_eos
    )
    runs: dict[str, Run] = {}
    for label in rotated(list(llms), number):
        try:
            runs[label] = run_once(llms[label], job.ids, params)
        except Exception as error:
            if label == "plain":
                raise
            leave_out(label, error, skipped)
            del llms[label]
    return {
        "family": job.family,
        "temperature": job.temperature,
        "prompt_tokens": len(job.ids),
        "drafters": {label: figures(runs[label], runs["plain"]) for label in llms},
    }


def report(records: list[dict], skipped: dict[str, str], args: argparse.Namespace) -> None:
    """A table per temperature, the files that were asked for, then the JSON line."""
    temperatures = sorted({r["temperature"] for r in records})
    tables = {t: summaries([r for r in records if r["temperature"] == t]) for t in temperatures}
    pages = []
    for temperature, summary in tables.items():
        title = f"{Path(args.model).name}, {args.dtype}, temperature {temperature:g}, {args.max_tokens} tokens"
        rows = list(cells(summary, is_same_expected=not temperature or args.rule == "coupled"))
        show(title, HEADER, rows)
        pages.append(markdown(title, rows))
        if args.plot:
            path = args.plot if len(tables) == 1 else args.plot.with_stem(f"{args.plot.stem}-t{temperature:g}")
            console.print(f"wrote {draw(chart(title, summary), path)}")
    if args.markdown:
        args.markdown.write_text("\n\n".join(pages) + "\n", encoding="utf-8")
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    finish({"settings": settings, "skipped": skipped, "temperatures": {f"{t:g}": s for t, s in tables.items()}})


def summaries(records: list[dict]) -> dict[str, dict[str, dict]]:
    """Family to drafter to figures; the family ``all`` has every prompt."""
    families = [*sorted({r["family"] for r in records}), "all"]
    labels = dict.fromkeys(label for r in records for label in r["drafters"])
    found = {
        (family, label): [
            r["drafters"][label] for r in records if family in (r["family"], "all") and label in r["drafters"]
        ]
        for family in families
        for label in labels
    }
    return {
        family: {
            label: summarise(found[family, label]) | {"tokens": sum(run["tokens"] for run in found[family, label])}
            for label in labels
            if found[family, label]
        }
        for family in families
    }


def cells(summary: dict[str, dict[str, dict]], is_same_expected: bool) -> Iterator[list[object]]:
    """Rows under `HEADER`, the fastest drafter of a family first."""
    for family, drafters in summary.items():
        for label, s in sorted(drafters.items(), key=lambda item: -(item[1]["speedup"] or 0)):
            milliseconds = 1e3 * s["draft_seconds"] * s["prompts"] / s["tokens"] if s["tokens"] else None
            measured = [s["acceptance_length"], s["acceptance_rate"], milliseconds, s["draft_share"], s["speedup"]]
            same = f"{s['identical']}/{s['prompts']}" if is_same_expected else None
            yield [family, label, *("-" if x is None else x for x in [*measured, same])]


def markdown(title: str, rows: Iterable[list[object]]) -> str:
    """A table for the documentation."""
    lines = [f"**{title}**", "", f"| {' | '.join(HEADER)} |", "|---" * 2 + "|---:" * (len(HEADER) - 2) + "|"]
    for row in rows:
        lines.append("| " + " | ".join(f"{x:.2f}" if isinstance(x, float) else str(x) for x in row) + " |")
    return "\n".join(lines)


def chart(title: str, summary: dict[str, dict[str, dict]]) -> Chart:
    """Speed-up by family (or context length), a curve per drafter."""
    families = list(summary)[:-1] or list(summary)
    is_long = all(family.endswith(" tokens") for family in families)
    x = [float(family.split()[0]) for family in families] if is_long else [float(i + 1) for i in range(len(families))]
    names = "context (tokens)" if is_long else ", ".join(f"{i + 1} {family}" for i, family in enumerate(families))
    labels = [
        label for label in summary[families[0]] if label != "plain" and all(label in summary[f] for f in families)
    ]
    series = tuple(Series(label, x, [summary[f][label]["speedup"] or 0.0 for f in families]) for label in labels)
    return Chart(title, names, "times plain decoding", series, discrete=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompts", type=Path, help="a .jsonl file")
    source.add_argument("--long", type=Path, help="a text file, for long contexts")
    parser.add_argument("--contexts", type=numbers(int), default=[2048, 4096], help="prompt lengths of --long")
    parser.add_argument("--per-family", type=int, default=5, help="prompts per family (or per length)")
    parser.add_argument("--families", type=names, help="a,b,c of --prompts; default all there are")
    parser.add_argument("--rounds", type=int, default=1, help="decode all of it so often: short answers are noisy")
    parser.add_argument("--drafters", type=names, default=list(drafter_names()), help="a,b,c; default all there are")
    parser.add_argument("--spec", action="append", default=[], help='LABEL={"method": ...}, a drafter with options')
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--draft-model", help="for drafters that take a model")
    parser.add_argument("--draft-dtype", help="how its weights are stored; default as the target's")
    parser.add_argument("-k", "--num-draft-tokens", type=int, help="default: each method's own")
    parser.add_argument("--temperature", type=numbers(float), default=[0.0], help="e.g. 0,1")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--ignore-eos", action="store_true")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument("--rule", default="p/q")
    parser.add_argument(
        "--policy", default="auto", help="how long drafts are; fixed shows a drafter at its full length"
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-cache-memory", type=float, help="GiB for keys and values; long contexts need more")
    parser.add_argument("--minutes", type=float, help="begin no prompt later than this; default: all prompts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    parser.add_argument("--plot", type=Path, help="write a plot here: .png, .svg or .pdf")
    parser.add_argument("--save", type=Path, help="append a JSON line per prompt here, so that nothing is lost")
    return parser.parse_args()


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def numbers(kind):
    return lambda text: [kind(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
