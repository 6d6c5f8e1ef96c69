"""The audit beside a server: who is taken, what is bet on, and that a lossy server is found."""

import pytest

from paceline.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.engine.setup.build import build_engine
from paceline.errors import InvalidParameter
from paceline.evaluation.audit.ledger import read_bets
from paceline.evaluation.audit.live import LiveAudit
from paceline.types import SamplingParams

NGRAM = {"method": "ngram", "num_draft_tokens": 4, "policy": "fixed", "options": {"prompt_lookup_min": 1}}
PROMPTS = [[5, 6, 7, 8] * 4, [9, 9, 9, 9, 9, 9], list(range(3, 40)), [1, 2] * 9]
SAMPLED = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)


@pytest.fixture
def served(tiny):
    """(spec, rate, **audit) -> (LLM, its live audit)."""

    def make(spec=NGRAM, rate=1.0, **more):
        plain = LLM.from_loaded(tiny, EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none"))
        llm = plain.drafting_with(spec)
        rule = more.pop("rule", str(spec.get("rule", "auto")))
        return llm, LiveAudit(tiny, llm.engine, rate, rule, seed=1, **more)

    return make


def ask(llm, params=SAMPLED, times=1):
    for _ in range(times):
        llm.generate(PROMPTS, params)


def test_answers_are_bet_on_when_nothing_runs(served, tmp_path):
    ledger = tmp_path / "ledger.json"
    llm, audit = served(ledger=ledger, key="k")
    ask(llm, times=2)
    llm.engine.add_request("runs", PROMPTS[0], SAMPLED)
    assert not audit.work(llm.engine), "a request runs"
    while llm.engine.has_unfinished_requests:
        llm.engine.step()
    while audit.work(llm.engine):
        pass
    assert audit.num_answers == 9
    assert audit.bets.num_tokens == 9 * 19
    assert audit.bets.num_drafted > 5
    assert not audit.is_lossy
    assert read_bets(ledger, "k").num_tokens == audit.bets.num_tokens
    lines = audit.prometheus_text('my "m"').decode().splitlines()
    assert r'paceline:audit_tokens{model_name="my \"m\""} 171.0' in lines
    assert len([line for line in lines if line.startswith("# HELP paceline:audit_")]) == 6


def test_drafts_that_know_the_noise_do_not_make_a_server_lossy(served, tmp_path):
    llm, audit = served({"method": "suffix", "num_draft_tokens": 4, "policy": "fixed"}, ledger=tmp_path / "l.json")
    for _ in range(6):
        ask(llm, SamplingParams(temperature=1.0, max_tokens=60, ignore_eos=True))
        while audit.work(llm.engine):
            pass
    assert audit.bets.num_drafted > 300 and audit.bets.num_compared == audit.bets.num_tokens == 24 * 59
    assert audit.bets.peak < 8 and not audit.is_lossy
    assert read_bets(tmp_path / "l.json", "").num_compared == 24 * 59


@pytest.mark.parametrize("cut", [{"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}], ids=str)
def test_cut_laws_are_left_out_where_rounding_moves_tokens_over_the_cut(served, tiny, cut, monkeypatch):
    for is_invariant in (False, True):
        monkeypatch.setattr(tiny.model, "is_row_invariant", is_invariant)
        llm, audit = served()
        ask(llm, SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, **cut))
        assert len(audit.sampler.waiting) == len(PROMPTS) * is_invariant


def test_a_share_is_taken_and_only_what_can_be_scored(served):
    llm, audit = served(rate=0.5)
    ask(llm, SamplingParams(temperature=0, max_tokens=20))
    ask(llm, SamplingParams(temperature=1, seed=3, max_tokens=20))
    assert not audit.sampler.waiting
    ask(llm, times=12)
    assert 12 <= len(audit.sampler.waiting) <= 36


def test_what_a_client_broke_off_counts_up_to_there(served):
    llm, audit = served()
    engine = llm.engine
    engine.add_request("broken", PROMPTS[0], SAMPLED)
    for _ in range(6):
        engine.step()
    said = len(engine.state_of("broken").token_ids)
    engine.abort("broken")
    assert audit.work(engine)
    assert audit.bets.num_tokens == said - len(PROMPTS[0]) - 1


def test_preempted_requests_are_scored_once_and_whole(tiny):
    from paceline.config import SpeculativeConfig
    from tests.engine.conftest import run_all

    config = EngineConfig(kv_cache_memory_bytes=60_000, max_model_len=60, profile="none")
    engine = build_engine(tiny, config, SpeculativeConfig.of(NGRAM))
    audit = LiveAudit(tiny, engine, 1.0, "auto")
    outputs = run_all(engine, PROMPTS, SAMPLED)
    assert engine.metrics.num_preemptions > 0
    while audit.work(engine):
        pass
    assert audit.num_answers == len(outputs)
    assert audit.bets.num_tokens == sum(len(output.token_ids) - 1 for output in outputs)


def test_a_lossy_server_is_found(served):
    """The rule says p/q and is lenient: a fault that the audit is not told of."""
    llm, audit = served(NGRAM | {"rule": "lenient", "rule_options": {"lenience": 0.02}}, rule="p/q")
    for _ in range(40):
        ask(llm)
        while audit.work(llm.engine):
            pass
        if audit.is_lossy:
            return
    raise AssertionError("not found")


def test_what_makes_no_sense_is_refused(served):
    with pytest.raises(InvalidParameter, match="audit_rate"):
        served(rate=2.0)
    with pytest.raises(InvalidParameter, match="lossy on purpose"):
        served(NGRAM | {"rule": "lenient"})
