"""Output of an audit: a page as text or HTML, and a JSON object."""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.evaluation import html
from paceline.evaluation.audit.verdict import Check, Verdict, unanswered

QUESTIONS = {
    "rows": "Does a token's score depend on what else is in its pass?",
    "rule": "Does the rule that accepts drafts keep the model's probabilities, over every coin?",
    "greedy": "Is the greedy text the same with and without drafts, alone and in company?",
    "coupled": "With a seed, is the sampled text the same with and without drafts?",
    "load": "Do requests say the same when many come, go and are cancelled?",
    "accounting": "Are lengths, stops, counters and the origin of each token told rightly?",
    "law": "Does sampled text follow the model's own probabilities, token by token?",
    "controls": "Are faults that were put in on purpose found by these tests?",
    "company": "Does the server say the same when it is asked many things at once?",
}
MEANINGS: dict[Verdict, str] = {
    "PROVED": "No difference is possible in what was tested: it was compared bit for bit, or enumerated.",
    "CONSISTENT": "No difference was found; each answer says how large a difference would have shown.",
    "NUMERIC": "Texts differ at near ties only, as rounding makes them; the sampler is not to blame.",
    "LOSSY": "Speculation changes what this model says.",
    "UNTESTED": "There is no evidence either way.",
}


INTRODUCTION = (
    "Speculative decoding lets a drafter guess several tokens ahead, which the model then keeps or refuses. Done "
    "rightly this makes answers faster and changes nothing of what they say. Here is what was tried to find a change."
)


def title_of(model: str, drafter: str) -> str:
    """The title of the page."""
    return f"Audit of {model} with drafts by {drafter}"


def verdict_line(verdict: Verdict, checks: Sequence[Check], excluded: float | None) -> str:
    """The verdict with its meaning, the checks without evidence, and the smallest effect excluded."""
    text = f"{verdict}. {MEANINGS[verdict]}"
    if verdict == "UNTESTED" and (missing := unanswered(checks)):
        text = f"{verdict}. The audit is inconclusive, for want of evidence in: {', '.join(missing)}."
    if excluded is not None and verdict not in ("LOSSY", "UNTESTED"):
        text += f" Drafts kept {excluded:g} times too readily, or more so, would have shown (95 %)."
    return text


def lines(title: str, verdict: Verdict, checks: Sequence[Check], excluded: float | None, seconds: float) -> list[str]:
    """The page, as text."""
    shown = [title, "", INTRODUCTION, "", verdict_line(verdict, checks, excluded), ""]
    for check in checks:
        shown += [f"{check.verdict:<11} {QUESTIONS.get(check.name, check.name)}", f"{'':<11} {check.says}."]
        shown += [f"{'':<11} {line}" for line in examples(check)[:1]]
    shown += ["", f"It took {seconds:.0f} s. What the words mean: docs/audit.md"]
    return shown


def examples(check: Check) -> list[str]:
    """A line for each difference between a server's texts, with which it can be reproduced."""
    return [
        f"For example {str(one['prompt'])[-60:]!r}, greedily: plain says {one['plain']!r}, speculative "
        f"{one['speculative']!r}, from character {one['character']} on" + _gap_text(one["gap"])
        for one in check.evidence.get("examples", ())
    ]


def _gap_text(gap: float | None) -> str:
    return "." if gap is None else f"; plain's two best tokens were {gap:.2g} apart in log probability there."


def page(title: str, verdict: Verdict, checks: Sequence[Check], excluded: float | None, data: Mapping[str, Any]) -> str:
    """The page as self-contained HTML."""
    rows = [(QUESTIONS.get(check.name, check.name), check.verdict, check.says) for check in checks]
    sections = [
        html.paragraph(INTRODUCTION),
        html.paragraph(verdict_line(verdict, checks, excluded), "verdict"),
        html.table(("question", "verdict", "why"), rows),
        html.heading("What the verdicts mean"),
        html.table(("verdict", "meaning"), list(MEANINGS.items())),
    ]
    parted = [line for check in checks for line in examples(check)]
    if parted:
        sections += [html.heading("Texts that differ"), *(html.paragraph(line) for line in parted)]
    wealth = next((check.evidence.get("log_wealth") for check in checks if check.name == "law"), None)
    if wealth:
        sections.append(html.heading("Bets against the text"))
        sections.append(html.paragraph(_BETS))
        sections.append(html.table(("had this been wrong", "log wealth"), [(n, f"{w:.1f}") for n, w in wealth.items()]))
    return html.page(title, sections, data)


_BETS = (
    "Each line bets on one way the text could be wrong. Wealth grows if it is, and shrinks if the text follows the "
    "model's own probabilities. The text is called lossy when the wealth of all together reaches the inverse of the "
    "chance of a false alarm."
)


def as_json(verdict: Verdict, checks: Sequence[Check], excluded: float | None, **more: Any) -> dict[str, Any]:
    """The JSON object."""
    return {
        "verdict": verdict,
        "checks": {check.name: {"verdict": check.verdict, "says": check.says, **check.evidence} for check in checks},
        "smallest_effect_excluded": excluded,
        **more,
    }
