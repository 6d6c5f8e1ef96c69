"""What is remembered of finished requests stays with their salt, and within its bound."""

import pytest

from paceline.drafters.lookup.blended import Blended
from paceline.drafters.lookup.past_pools import PastPools
from paceline.drafters.lookup.suffix import Suffix
from paceline.speculation.outcome import RequestOutcome
from tests.drafters.contexts import context, propose


class Kept:
    """Counts."""

    def __init__(self) -> None:
        self.num_tokens = 0

    def add(self, token_ids) -> None:
        self.num_tokens += len(token_ids)


def finish(drafter, token_ids, salt: bytes) -> None:
    """Let a request of `salt` end whose output is `token_ids`."""
    drafter.propose([context([0], request_id="past", num_prompt=1, salt=salt)])
    drafter.observe(RequestOutcome("past", (0, *token_ids), finished=True))


@pytest.mark.parametrize("make", [Blended, Suffix])
def test_no_request_is_drafted_for_from_texts_of_another_salt(make):
    drafter = make()
    finish(drafter, [1, 2, 3, 4, 5], b"a")
    mine = [propose(drafter, [9, 1, 2, 3], request_id=f"mine-{i}", salt=b"a").tokens for i in range(2)]
    assert mine[-1][:2] == (4, 5)
    for salt in (b"b", b""):
        assert len(propose(drafter, [9, 1, 2, 3], request_id=f"of {salt}", salt=salt)) == 0


def test_all_pools_together_stay_within_the_bound_and_the_oldest_salt_goes_first():
    pools = PastPools(Kept, 10)
    for salt in (b"a", b"b", b"a", b"c"):
        pools.add(salt, [1, 2, 3, 4])
    assert [pools.of(salt).num_tokens for salt in (b"a", b"b", b"c", b"never")] == [0, 0, 4, 0]
    pools.add(b"d", [1] * 6)
    assert [pools.of(salt).num_tokens for salt in (b"c", b"d")] == [4, 6]


@pytest.mark.parametrize("make", [Blended, Suffix])
def test_where_nothing_is_remembered_no_salt_is_either(make):
    drafter = make(max_cached_tokens=0)
    for number in range(20):
        finish(drafter, [1, 2, 3, 4], bytes([number]))
    assert not drafter._past._pools
