"""Timed runs: which speed-ups drafts can cause."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from paceline.engine.llm import LLM
from paceline.evaluation.report import Decoding, Run, drafts_can_explain, is_plausible, speedup_of, warm_up
from paceline.types import RequestStats


def run(tokens, passes, seconds, drafted=0, verify=None):
    """A run of `tokens` tokens, the first one from the prompt, in `passes` further passes."""
    stats = RequestStats(
        1, drafted, tokens - 1 - passes, 0, passes, (), 0.0, seconds if verify is None else verify, 0.0, 0
    )
    return Run(SimpleNamespace(token_ids=(0,) * tokens, stats=stats), 0.1, seconds)  # type: ignore[arg-type]


PLAIN = run(41, 40, 4.0)


@pytest.mark.parametrize(
    ("fast", "plausible"),
    [
        (run(41, 40, 4.0), True),
        (run(41, 40, 4.0 / 5.83), False),  # one token per pass cannot be faster
        (run(41, 20, 2.0, drafted=40), True),
        (run(41, 20, 0.4, drafted=40), False),
        (run(41, 20, 1.9, drafted=40), True),  # noise
        (run(41, 5, 0.5, drafted=40), True),  # 8 tokens per pass
        (run(41, 40, 40.0, verify=40.0), False),  # without drafts no pass takes ten times as long
        (run(41, 40, 40.0, drafted=600, verify=40.0), True),
        (run(41, 40, 40.0, verify=4.0), True),  # the drafter itself may be slow
        (run(1, 0, 0.0), True),
    ],
)
def test_a_speedup_is_plausible_if_drafts_can_cause_it(fast, plausible):
    assert is_plausible(fast, PLAIN) is plausible


def test_dear_passes_that_drafts_spare_count_for_what_they_took():
    """Half of the tokens take three times as long and are drafted well: 4 x, with 3 tokens per pass on average."""
    cheap, dear = Decoding(100, 100, 0, 1.0, 1.0), Decoding(100, 100, 0, 3.0, 3.0)
    drafted = Decoding(100, 50, 50, 0.5, 0.5), Decoding(100, 17, 83, 0.5, 0.5)
    assert drafts_can_explain(list(zip(drafted, (cheap, dear), strict=True)))
    assert not drafts_can_explain(
        [(replace(one, seconds=0.3), plain) for one, plain in zip(drafted, (cheap, dear), strict=True)]
    )
    assert drafts_can_explain([]) and drafts_can_explain([(Decoding(0, 0, 0, 0.0, 0.0), cheap)])


def test_without_a_decoded_token_there_is_no_speedup():
    assert speedup_of(PLAIN, run(1, 0, 0.0)) is None
    assert is_plausible(PLAIN, run(1, 0, 0.0))
    assert speedup_of(run(41, 20, 2.0), PLAIN) == 2.0
    assert speedup_of(replace(PLAIN, decode_seconds=0.0), PLAIN) == 0.0


def test_a_warm_up_asks_little_and_shares_nothing_with_later_requests():
    asked = []

    class Spy(LLM):
        def __init__(self):
            pass

        def generate(self, prompts, sampling_params=None, **how):
            asked.append((prompts, sampling_params.max_tokens, how))
            return []

    warm_up(Spy(), Spy(), token_ids=range(100))
    assert asked == [([[0, 1, 2, 3]], 4, {"cache_salt": "warm-up"})] * 2
