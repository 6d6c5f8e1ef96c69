"""Verdicts of an audit and their exit codes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Verdict = Literal["PROVED", "CONSISTENT", "NUMERIC", "LOSSY", "UNTESTED"]
"""``PROVED``: equal bit for bit, or by enumeration. ``CONSISTENT``: no difference found, with a bound on those still
possible. ``NUMERIC``: differences at near ties only. ``LOSSY``: a difference that chance does not explain.
``UNTESTED``: no evidence either way."""

EXIT_OK, EXIT_LOSSY, EXIT_INCONCLUSIVE = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question.

    Attributes:
        name: of the check.
        verdict: see `Verdict`.
        says: one sentence for people.
        evidence: numbers behind it, JSON-ready.
        arises: the question applies, so an audit without an answer to it is inconclusive.
    """

    name: str
    verdict: Verdict
    says: str
    evidence: dict[str, Any] = field(default_factory=dict)
    arises: bool = True


def overall(checks: Sequence[Check]) -> Verdict:
    """The verdict of an audit: LOSSY if any check is, else the weakest verdict of a question that arises."""
    if any(check.verdict == "LOSSY" for check in checks):
        return "LOSSY"
    answers = {check.verdict for check in checks if check.arises or check.verdict != "UNTESTED"}
    weakest: tuple[Verdict, ...] = ("UNTESTED", "NUMERIC", "CONSISTENT", "PROVED")
    for verdict in weakest:
        if verdict in answers:
            return verdict
    return "UNTESTED"


def unanswered(checks: Sequence[Check]) -> list[str]:
    """Names of the checks that leave an audit inconclusive."""
    return [check.name for check in checks if check.arises and check.verdict == "UNTESTED"]


def without_blind(checks: Sequence[Check], blind: Collection[str]) -> list[Check]:
    """`checks`, with those in `blind` as UNTESTED unless LOSSY, because they missed an injected fault."""
    says = "a fault that was put in on purpose was not found, so this proves nothing: "
    return [
        replace(check, verdict="UNTESTED", says=says + check.says)
        if check.name in blind and check.verdict != "LOSSY"
        else check
        for check in checks
    ]


def exit_code(verdict: Verdict, strict: bool = False, is_detected: bool = True) -> int:
    """0 for no difference found, 1 for LOSSY, 3 for inconclusive.

    Args:
        strict: differences at near ties are inconclusive too.
        is_detected: the lenience given with ``--detect`` is excluded; else the audit is inconclusive.
    """
    if verdict == "LOSSY":
        return EXIT_LOSSY
    if verdict == "UNTESTED" or (verdict == "NUMERIC" and strict) or not is_detected:
        return EXIT_INCONCLUSIVE
    return EXIT_OK
