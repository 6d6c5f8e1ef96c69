"""`paceline audit`: does speculation change what a model says? Evidence for your model, settings and prompts."""

import json
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.options import model as o
from paceline.cli.options.given import options_of, refuse_given
from paceline.cli.options.groups import Drafting, Machine, grouped
from paceline.cli.terminal.streams import output, progress_bars, telling_end
from paceline.config import SpeculativeConfig
from paceline.disk import check_placed_file
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.evaluation.audit.verdict import Check, Verdict

WHAT = "What is audited"


@dataclass(frozen=True, slots=True)
class Question:
    """What is audited, how deeply, and what is written."""

    prompts: Annotated[
        str, o.option(WHAT, "--prompts", "--traffic", help="builtin, or your own: a .jsonl or .txt file.")
    ] = "builtin"
    url: Annotated[str | None, o.option(WHAT, "--url", help="Audit this OpenAI server instead: URL or URL#MODEL.")] = (
        None
    )
    plain_url: Annotated[str | None, o.option(WHAT, "--plain-url", help="The same server without speculation.")] = None
    checks: Annotated[
        str | None,
        o.option(WHAT, "--checks", help="a,b,c of rows, rule, greedy, coupled, load, accounting, law, controls."),
    ] = None
    detect: Annotated[
        str | None, o.option(WHAT, "--detect", help="lenience=1.05: exit 3 unless this effect is excluded.")
    ] = None
    alpha: Annotated[float, o.option(WHAT, "--alpha", help="Chance of a false alarm, however long it runs.")] = 1e-6
    minutes: Annotated[
        float,
        o.option(
            WHAT, "--minutes", help="About how long it may take; all checks take 40 s at least with a small model."
        ),
    ] = 5.0
    strict: Annotated[bool, o.option(WHAT, "--strict", help="Near ties are inconclusive: exit 3.")] = False
    max_tokens: o.MaxTokens = 64
    raw: o.Raw = False
    ledger: Annotated[
        Path | None, o.option(o.OUTPUT, "--ledger", help="Add the evidence of this run to this file, night by night.")
    ] = None
    html: Annotated[Path | None, o.option(o.OUTPUT, "--html", help="Write the page here too.")] = None
    as_json: o.Json = False


@grouped
def audit(
    context: typer.Context,
    model: o.ModelOrServers = o.DEFAULT_MODEL,
    *,
    question: Question,
    drafting: Drafting,
    machine: Machine,
) -> None:
    """Test whether speculation changes what a model says, and end with a page that says what was found.

    Rows bit for bit, the rule over every coin, greedy and seeded texts, texts under load, counters, and sampled text
    against the model's own probabilities. Faults put in on purpose must be found by the same tests. Takes about as
    long as --minutes says, 5 unless given, or with --url as long as the servers take to answer. Exit 0: proved or
    consistent; 1: lossy; 3: inconclusive; 2: the question was wrong.

    Examples:

        paceline audit smollm2-135m --minutes 2

        paceline audit target.gguf --draft draft_model --draft-model small.gguf --detect lenience=1.1 --html audit.html

        paceline audit --traffic log.jsonl --draft suffix --ledger audit.json --json

        paceline audit --url http://localhost:8000 --plain-url http://localhost:8001 --prompts questions.jsonl
    """
    from paceline.evaluation.audit import show
    from paceline.evaluation.prompts import load_prompts
    from paceline.evaluation.provenance import provenance

    if question.html is not None:
        check_placed_file("html", question.html)
    texts = [prompt.text for prompt in load_prompts(question.prompts)]
    with telling_end("ended before the audit was done; nothing is written"):
        if question.url is not None:
            result = _remote(question.url, _plain_url(context, model, question), texts, question)
        else:
            result = _local(model, drafting, texts, machine, question)
    title, verdict, found, excluded, seconds, code = result
    record = show.as_json(verdict, found, excluded, seconds=seconds, exit_code=code, provenance=provenance())
    if question.html:
        question.html.write_text(show.page(title, verdict, found, excluded, record), encoding="utf-8")
    if not question.as_json:
        for line in show.lines(title, verdict, found, excluded, seconds):
            output.print(line, soft_wrap=True)
    else:
        print(json.dumps(record))
    raise typer.Exit(code)


Found = tuple[str, "Verdict", "list[Check]", float | None, float, int]


def _local(model: str, drafting: Drafting, texts: list[str], machine: Machine, question: Question) -> Found:
    """Audit a local model: (title, verdict, checks, smallest effect excluded, seconds, exit code)."""
    from paceline.drafters.auto import resolve_drafter
    from paceline.evaluation.audit import show
    from paceline.evaluation.audit.betting import Bets
    from paceline.evaluation.audit.ledger import check_ledger, fingerprint, read_bets, write_bets
    from paceline.evaluation.audit.run import CHECKS, AuditPlan
    from paceline.evaluation.audit.run import audit as run
    from paceline.evaluation.prompts import ids_of

    if question.plain_url is not None:
        raise InvalidParameter("plain_url", "is given without --url", "name the server that speculates with --url")
    o.need_model(model)
    config, ledger, least = _config(drafting), question.ledger, _lenience(question.detect)
    checks = o.names(question.checks) or CHECKS
    plan = AuditPlan({"rule": config.rule}, question.minutes, checks, question.alpha, least, question.max_tokens)
    if ledger:
        check_ledger(ledger)
    plain = o.load_llm(model, None, **machine.engine())
    spec = asdict(resolve_drafter(config, plain.loaded) or config)
    plan = replace(plan, speculative=spec)
    ids = ids_of(plain, texts, question.raw)
    key = fingerprint(plain.loaded.source.checkpoint.fingerprint, {"dtype": plain.dtype, "speculative": spec})
    bets = read_bets(ledger, key) if ledger else Bets()
    with progress_bars() as progress:
        found = run(plain, ids, plan, bets, progress)
    if ledger:
        write_bets(ledger, key, bets)
    title = show.title_of(f"{model} ({plain.dtype})", spec["method"])
    code = found.exit_code(question.strict)
    return title, found.verdict, list(found.checks), found.smallest_effect_excluded, found.seconds, code


def _config(drafting: Drafting) -> SpeculativeConfig:
    """What is audited. Raises InvalidParameter if there is no drafter."""
    from paceline.drafters.auto import AUTO
    from paceline.drafters.registry import option_names

    config = drafting.config()
    if config is None:
        raise InvalidParameter("draft", "none drafts nothing, so there is nothing to audit", "name a drafter")
    if config.method != AUTO:
        option_names(config.method)
    return config


def _plain_url(context: typer.Context, model: str, question: Question) -> str:
    """URL of the plain server. Raises InvalidParameter if missing, or for options without effect on servers."""
    if question.plain_url is None:
        remedy = "start it a second time without speculation and name that"
        raise InvalidParameter("plain_url", "is missing: a server's text is compared with its own plain text", remedy)
    names = options_of(Drafting, Machine) | {"checks", "detect", "alpha", "minutes", "ledger"}
    problem = "is given beside --url: the texts of servers are compared, which run already; their laws are not known"
    remedy = "leave it out, or audit the weights here; --prompts and --max-tokens say how much is asked"
    refuse_given(context, names if model == o.NONE else names | {"model"}, problem, remedy)
    return question.plain_url


def _remote(url: str, plain_url: str, texts: list[str], question: Question) -> Found:
    """Audit a server; returns the same as `_local`."""
    import time

    from paceline.evaluation.audit.remote import remote_audit
    from paceline.evaluation.audit.verdict import exit_code, overall
    from paceline.evaluation.endpoint import connect_to

    started = time.monotonic()
    spec, plain = connect_to(url), connect_to(plain_url)
    checks = remote_audit(spec, plain, texts, question.max_tokens, raw=question.raw)
    verdict = overall(checks)
    title = f"Audit of {spec.model} at {url} ({spec.dialect})"
    return title, verdict, checks, None, time.monotonic() - started, exit_code(verdict, question.strict)


def _lenience(text: str | None) -> float | None:
    if text is None:
        return None
    name, _, value = text.partition("=")
    try:
        if name != "lenience" or not 1 < float(value) < inf:
            raise ValueError
    except ValueError:
        raise InvalidParameter("detect", f"{text!r} cannot be read", "write e.g. lenience=1.05") from None
    return float(value)
