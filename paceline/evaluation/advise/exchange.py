"""`speculation_profile.json`: import and export of acceptance rates by position.

The field names are those that NVIDIA's Model-Optimizer proposes (pull request 2247). The optional `trace` is ours: a
proposal at every position of every answer, for any length (`placement/acceptance.py`). Not for measuring acceptance.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import InvalidParameter
from paceline.evaluation.advise.replay import Offer, Rounds, Text, expected_rounds

FORMAT, VERSION = "paceline-speculation-profile", 2
ELSEWHERE = "read from a file: one rate for every place of a draft, whatever the text"


def as_profile(draft: str, spec: Mapping[str, Any], k: int, rounds: Sequence[Rounds], how: str) -> dict[str, Any]:
    """The replay of one drafter at one length, as a speculation profile."""
    count = sum(one.count for one in rounds)
    tested, accepted = (_summed([getattr(one, name) for one in rounds]) for name in ("tested", "accepted"))
    runs = [count, *accepted, 0.0]
    return {
        "draft": draft,
        "method": spec["method"],
        "model": spec.get("model"),
        "num_speculative_tokens": k,
        "conditional_accept_rates": [a / t for a, t in zip(accepted, tested, strict=True) if t],
        "marginal_accept_rates": [a / count for a in accepted],
        "mean_accept_length": 1 + sum(accepted) / count if count else None,
        "acceptance_length_histogram": {str(i + 1): runs[i] - runs[i + 1] for i in range(len(accepted) + 1)},
        "measurement_conditions": {"num_samples": len(rounds), "validation": f"offline replay: {how}"},
    }


def write_profiles(path: Path, model: str, temperature: float, profiles: Sequence[Mapping[str, Any]]) -> None:
    """Write all profiles; the fields of the first are repeated at top level, for readers of a single profile."""
    head = {"format": FORMAT, "version": VERSION, "target": model, "temperature": temperature}
    first = {name: value for name, value in profiles[0].items() if name != "trace"} if profiles else {}
    path.write_text(json.dumps(head | first | {"profiles": list(profiles)}) + "\n", encoding="utf-8")


def read_profiles(path: Path) -> list[dict[str, Any]]:
    """The profiles in a file: ours, or another tool's with one profile.

    Raises:
        InvalidParameter: the file cannot be read, or holds no rates in [0, 1].
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        found = values.get("profiles") or [values]
        for one in found:
            one["num_speculative_tokens"] = int(one["num_speculative_tokens"])
            one["stands"] = _conditional([float(rate) for rate in one["marginal_accept_rates"]])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "give marginal_accept_rates and num_speculative_tokens, as paceline advise --export writes them"
        raise InvalidParameter("acceptance", f"{path} cannot be read ({error!r})", remedy) from None
    keys = [(name_of(one), one["num_speculative_tokens"]) for one in found]
    again = next((key for number, key in enumerate(keys) if key in keys[:number]), None)
    if again is not None:
        problem = f"{path} has two profiles of {again[0]!r} with {again[1]} tokens"
        raise InvalidParameter("acceptance", problem, "give each a name of its own in the field draft")
    return found


def name_of(profile: Mapping[str, Any]) -> str:
    """The name of the candidate that a profile belongs to."""
    return str(profile.get("draft") or profile.get("method") or "from the file")


def rounds_by_rate(texts: Sequence[Text], stands: Sequence[float], k: int, step_seconds: float = 0.0) -> list[Rounds]:
    """The expected rounds of every text when each round drafts `k` tokens with acceptance rates `stands` by position.

    Args:
        step_seconds: seconds of drafting one token.
    """
    found = []
    for text in texts:
        rounds = expected_rounds(text.num_decoded, _offers(text, stands, k))
        rounds.draft_seconds = step_seconds * sum(size * number for size, number in rounds.sizes.items())
        found.append(rounds)
    return found


def _offers(text: Text, stands: Sequence[float], k: int) -> Any:
    def offer(place: int) -> Offer:
        size = min(k, text.num_decoded - place - 1) if text.is_cut else k
        return size, [*stands, *[0.0] * k][:size]

    return offer


def _conditional(marginal: Sequence[float]) -> list[float]:
    """Conditional acceptance rate at each position given the one before, rounds without a draft included."""
    if not marginal or not all(0 <= rate <= 1 for rate in marginal):
        raise ValueError("rates outside [0, 1]")
    before = [1.0, *marginal]
    return [rate / last if last else 0.0 for rate, last in zip(marginal, before, strict=False)]


def _summed(lists: Sequence[Sequence[float]]) -> list[float]:
    depth = max(map(len, lists), default=0)
    return [sum(each[level] for each in lists if level < len(each)) for level in range(depth)]
