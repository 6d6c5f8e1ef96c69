"""Records and prices that the tests of decisions share."""

from paceline.speculation import DraftRates, DraftStats, FixedPrices, RequestOutcome


def at_rate(alpha: float, **fields) -> DraftStats:
    """A request each of whose levels stands with chance `alpha`."""
    return DraftStats(rates=DraftRates(accepted=[alpha], tested=[1.0]), **fields)


def at_rates(rates: list[float], weight: float = 1e9) -> DraftStats:
    """A request whose level number i stands with chance ``rates[i]`` when those before it do, known very well."""
    return DraftStats(rates=DraftRates(accepted=[rate * weight for rate in rates], tested=[weight] * len(rates)))


def verified(nodes: int, accepted: int, wanted: int | None = None, name: str = "r") -> RequestOutcome:
    """What became of a chain of `nodes` tokens that was asked for; 0 for a drafter that had no answer."""
    return RequestOutcome(
        name, num_new=accepted + 1, num_draft_tokens=nodes, depth=nodes, num_accepted=accepted,
        level_rejected=accepted < nodes, num_rejected=int(accepted < nodes),
        wanted=nodes if wanted is None else wanted, asked=True,
    )  # fmt: skip


def one_row_costs(row: float) -> FixedPrices:
    """A pass takes 1 and `row` more for each of its rows; drafts are free."""
    return FixedPrices(lambda rows, _: 1 + row * rows)


def by_level(rates: DraftRates) -> tuple[list[float], list[float]]:
    """Levels that stood and levels that were judged, in drafts."""
    return [one / rates.unit for one in rates.accepted], [one / rates.unit for one in rates.tested]
