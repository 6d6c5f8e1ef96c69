"""Audits of a small random model: an honest one passes, lossy rules and tampered engines do not."""

import json
from dataclasses import replace
from itertools import count, islice
from math import log

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.options import model as options
from paceline.errors import InvalidParameter
from paceline.evaluation.audit import identity, run
from paceline.evaluation.audit.betting import Bets
from paceline.evaluation.audit.controls import Control
from paceline.evaluation.audit.law import answers_without_end, law_check
from paceline.evaluation.audit.recorder import Recorder
from paceline.evaluation.audit.remote import Texts, fisher, remote_audit, same_draws
from paceline.evaluation.audit.rule import case_of, rule_check
from paceline.evaluation.audit.run import CHECKS, AuditPlan, audit
from paceline.evaluation.audit.show import lines
from paceline.evaluation.audit.verdict import Check, exit_code, overall, without_blind
from paceline.evaluation.endpoint import connect
from paceline.models.torch_executor import TorchModel
from paceline.sampling import Law, TokenTree, resolve, verify, verify_coupled
from paceline.types import SamplingParams
from tests.evaluation.audit.conftest import NGRAM, PROMPTS
from tests.evaluation.bench.openai_server import Fake, serving
from tests.fakes import RandomCheckpoint, small_config

SUFFIX = {"method": "suffix", "num_draft_tokens": 4, "policy": "fixed"}
SERVERS = ["--url", "http://127.0.0.1:9", "--plain-url", "http://127.0.0.1:9"]


@pytest.fixture
def question(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(bytes(prompt).decode() for prompt in PROMPTS))
    return str(path)


@pytest.fixture
def command(plain, monkeypatch, question):
    monkeypatch.setattr(options, "load_llm", lambda name, speculative, **engine: plain)
    arguments = ["audit", "any", "--prompts", question, "--max-tokens", "12", "--draft", "ngram", "-k", "4"]
    arguments += ["--policy", "fixed", "--draft-option", "prompt_lookup_min=1", "--minutes", "0.02"]
    return lambda *more: CliRunner().invoke(app, [*arguments, *more])


def by_name(found):
    return {check.name: check for check in found.checks}


def test_an_honest_engine_passes_and_faults_put_in_are_found(plain):
    ticks = count(step=1.0)
    found = audit(plain, PROMPTS, AuditPlan(NGRAM, minutes=0.3, max_tokens=40), clock=lambda: next(ticks))
    checks = by_name(found)
    assert checks["controls"].verdict == "PROVED", checks["controls"].says
    assert {name: check.verdict for name, check in checks.items()} == {
        "rows": "PROVED", "rule": "PROVED", "greedy": "CONSISTENT", "coupled": "CONSISTENT", "load": "CONSISTENT",
        "accounting": "CONSISTENT", "controls": "PROVED", "law": "CONSISTENT",
    }  # fmt: skip
    assert found.verdict == "CONSISTENT"
    assert found.exit_code() == 0
    assert checks["law"].evidence["drafted_tokens"] > 20
    assert checks["law"].evidence["p_value"] > 1e-3


@pytest.mark.parametrize(
    ("rule", "rule_options", "by"),
    [
        ("lenient", {"lenience": 0.1}, {"rule", "law"}),
        ("typical", {}, {"rule", "law"}),
        ("lenient_greedy", {"lenience": 0.01}, {"greedy"}),
    ],
)
def test_a_lossy_rule_is_called_lossy(plain, rule, rule_options, by):
    spec = NGRAM | {"rule": rule, "rule_options": rule_options}
    plan = AuditPlan(spec, minutes=0.1, checks=("rule", "greedy", "law"), max_tokens=24)
    found = audit(plain, PROMPTS, plan)
    assert found.verdict == "LOSSY"
    assert found.exit_code() == 1
    assert by <= {name for name, check in by_name(found).items() if check.verdict == "LOSSY"}


def test_a_rule_that_tosses_the_wrong_coin_fails_the_enumeration(tiny):
    case = case_of(tiny.model, None, PROMPTS[0], SamplingParams(temperature=1.0))

    class Tampered:
        def __init__(self, inner):
            self.inner = inner

        def coin(self, probability, position, node):
            return self.inner.coin(min(1.0, 1.01 * probability), position, node)

        def draw(self, law, position, purpose, node=-1):
            return self.inner.draw(law, position, purpose, node)

    wrong = rule_check(
        [case], {"tampered": lambda tree, target, randomness, at: verify(tree, target, Tampered(randomness), at)}
    )
    assert wrong.verdict == "LOSSY"
    assert (
        rule_check([case], {name: resolve(name) for name in ("p/q", "block", "rejection_sampling", "auto")}).verdict
        == "PROVED"
    )


def test_a_model_whose_rows_depend_on_their_company_is_numeric(tiny, monkeypatch):
    class Noisy:
        config = tiny.model.config
        new_cache = tiny.model.new_cache
        is_row_invariant = True

        def forward(self, rows, cache, taps=()):
            output = tiny.model.forward(rows, cache)
            return replace(output, logits=output.logits + np.float32(1e-3 * len(rows.token_ids)))

    class Faster(Noisy):
        is_row_invariant = False

    assert identity.rows_check(tiny.model).verdict == "PROVED"
    assert identity.rows_check(Noisy()).verdict == "NUMERIC"
    assert "--deterministic" not in identity.rows_check(Noisy()).says
    assert "--deterministic" in identity.rows_check(Faster()).says
    assert identity.near_tie(Noisy()) == identity.near_tie(tiny.model) == identity.NEAR_TIE
    assert identity.near_tie(Faster()) > 1e-2


def test_rounding_of_the_torch_executor_is_no_fault():
    model = TorchModel(RandomCheckpoint(small_config()), dtype="bfloat16")
    assert identity.rows_check(model).verdict == "NUMERIC"
    assert identity.near_tie(model) > identity.NEAR_TIE


def test_false_books_are_found(plain, monkeypatch):
    spec = plain.drafting_with(NGRAM)
    honest = spec.generate

    def forged(prompts, params):
        outputs = honest(prompts, params)
        return [replace(o, outputs=(replace(o.outputs[0], provenance=o.outputs[0].provenance[:-1]),)) for o in outputs]

    monkeypatch.setattr(spec, "generate", forged)
    check = identity.accounting_check(plain, spec, PROMPTS[:1], 12)
    assert check.verdict == "LOSSY"
    assert "provenance" in check.says


def test_drafts_are_written_down_place_by_place():
    trees = iter(
        [TokenTree.chain([7, 8]), TokenTree(), TokenTree.chain([4], [Law(np.array([4, 5]), np.array([0.5, 0.5]))])]
    )

    class Inner:
        name, traits = "inner", None

        def propose(self, contexts):
            return [next(trees) for _ in contexts]

    class Context:
        request_id, budget, coupled = "a", 9, False

        def __init__(self, length):
            self.token_ids = [0] * length

    recorder = Recorder(Inner())  # type: ignore[arg-type]
    for length in (3, 5, 6):
        recorder.propose([Context(length)])  # type: ignore[list-item]
    laws = recorder.draft_laws("a", [1, 1, 1, 7, 9, 2, 5], 3)
    assert [None if law is None else law.tokens.tolist() for law in laws] == [[7], [8], None, [4, 5]]


def test_drafts_that_know_the_noise_are_not_bet_on(plain):
    """`suffix` guesses tokens of little noise: bets that take its drafts for fixed before the draw grow for ever."""
    spec, fair, unfair = plain.drafting_with(SUFFIX), Bets(), Bets()
    params = SamplingParams(temperature=1, max_tokens=60, ignore_eos=True)  # for an answer of one token nobody drafts
    for batch in islice(answers_without_end(spec, PROMPTS, params), 10):
        for place in batch:
            fair.feed(*place)
            unfair.feed(*place[:3])
    assert unfair.peak > log(1e6) > 5 > fair.peak
    assert fair.num_compared == fair.num_tokens > 1000 and not fair.num_other
    found = law_check(fair, log(1e-6))
    assert found.verdict == "CONSISTENT" and "noise draws, so fewer than" in found.says


def test_a_token_that_the_noise_does_not_draw_is_a_fault(plain, monkeypatch):
    def leaks(tree, law, randomness, position):
        verdict = verify_coupled(tree, law, randomness, position)
        return verdict._replace(token=tree.tokens[0]) if len(tree) and not verdict.path else verdict

    monkeypatch.setattr("paceline.sampling.rules.verify_coupled", leaks)
    found = audit(plain, PROMPTS, AuditPlan(SUFFIX, minutes=0.05, checks=("law",), max_tokens=24))
    [check] = found.checks
    assert check.verdict == "LOSSY" and "not those that the requests' noise draws" in check.says
    assert found.exit_code() == 1


def test_a_lenience_cannot_be_excluded_where_drafts_know_the_noise(plain):
    with pytest.raises(InvalidParameter, match=r"detect: .*noise.* p/q"):
        audit(plain, PROMPTS, AuditPlan(SUFFIX, minutes=0.02, checks=("law",), detect=1.1))


def test_the_object_that_scripts_read(command, tmp_path):
    page, ledger = tmp_path / "audit.html", tmp_path / "ledger.json"
    result = command("--json", "--html", str(page), "--ledger", str(ledger), "--max-tokens", "40")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert record["verdict"] == "CONSISTENT"
    assert set(record["checks"]) == {"rows", "rule", "greedy", "coupled", "load", "accounting", "controls", "law"}
    assert all(check["verdict"] for check in record["checks"].values())
    assert "smallest_effect_excluded" in record
    assert "CONSISTENT" in page.read_text()
    [entry] = json.loads(ledger.read_text())["ledger"].values()
    assert entry["audits"] == 1


def test_people_get_a_page_and_builds_an_exit_code(command):
    result = command("--checks", "rows,rule", "--rule", "typical")
    assert result.exit_code == 1, result.output
    assert "LOSSY. Speculation changes what this model says." in result.stdout
    assert "docs/audit.md" in result.stdout
    assert command("--checks", "rows,law", "--detect", "lenience=1.02", "--alpha", "1e-9").exit_code == 3


@pytest.mark.parametrize(
    ("during", "says"),
    [
        ("rows_check", "ended before the first check was done; nothing is written"),
        ("greedy_check", "ended after 2 of 8 checks (rows PROVED, rule PROVED); this is no verdict, and nothing is"),
        ("law_check", "ended after 7 of 8 checks (rows PROVED, rule PROVED, greedy "),
    ],
)
def test_ctrl_c_tells_what_was_found_before(command, during, says, tmp_path, monkeypatch):
    ledger = tmp_path / "ledger.json"
    monkeypatch.setattr(run, during, _press_ctrl_c)
    result = command("--ledger", str(ledger), "--max-tokens", "40")
    assert (result.exit_code, result.stdout) == (130, "")
    assert says in result.stderr and result.stderr.count("\n") == 1
    assert not ledger.exists()


def test_ctrl_c_before_the_checks_says_that_there_is_nothing(command, monkeypatch):
    monkeypatch.setattr(options, "load_llm", _press_ctrl_c)
    result = command()
    assert (result.exit_code, result.stderr) == (130, "ended before the audit was done; nothing is written\n")


def _press_ctrl_c(*_, **__):
    raise KeyboardInterrupt


def test_a_prompt_that_the_model_cannot_read_is_named_before_the_audit(command, tmp_path):
    (tmp_path / "prompts.txt").write_text("short\nso long" + " x" * 9000)
    result = command("--prompts", str(tmp_path / "prompts.txt"))
    assert isinstance(result.exception, InvalidParameter)
    assert str(result.exception).startswith("prompts: 'so long x x")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["--checks", "nope"], "checks"), (["--detect", "1.1"], "detect"), (["--minutes", "0"], "minutes"),
     (["--draft", "none", "-k", "1"], "num_draft_tokens"), (["--url", "http://127.0.0.1:9"], "plain_url"),
     (["--draft", "nope"], "drafter"), (["--minutes", "inf"], "minutes"), (["--alpha", "1"], "alpha"),
     (["--max-tokens", "1"], "max_tokens"), (["--html", "/dev/null/x.html"], "html"), (["--ledger", "."], "ledger"),
     (["--plain-url", "http://127.0.0.1:9"], "plain_url"), (["--prompts", "/no/such/file"], "prompts"),
     (["--detect", "lenience=1.01"], "detect"), (["--detect", "lenience=inf"], "detect"),
     (["--detect", "lenience=1.1", "--checks", "greedy"], "detect"),
     (["--detect", "lenience=1.1", "--rule", "block"], "detect")],
)  # fmt: skip
def test_bad_input_names_its_field_before_a_model_is_loaded(command, monkeypatch, arguments, field):
    monkeypatch.setattr(options, "load_llm", lambda *_, **__: pytest.fail("loaded first"))
    result = command(*arguments)
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == field


def test_a_rule_in_vllms_json_is_that_of_the_audit(question, monkeypatch):
    monkeypatch.setattr(options, "load_llm", lambda *_, **__: pytest.fail("loaded first"))
    arguments = ["audit", "any", "--prompts", question, "--detect", "lenience=1.1"]
    result = CliRunner().invoke(app, [*arguments, "--speculative-config", '{"method": "ngram", "rule": "block"}'])
    assert isinstance(result.exception, InvalidParameter) and result.exception.field == "detect"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["--detect", "lenience=1.1"], "detect"), (["--checks", "law"], "checks"), (["--minutes", "5"], "minutes"),
     (["--alpha", "0.01"], "alpha"), (["-k", "4"], "num_draft_tokens"), (["--draft", "ngram"], "draft"),
     (["--policy", "fixed"], "policy"), (["--rule", "block"], "rule"), (["--draft-option", "a=1"], "draft_option"),
     (["--ledger", "x.json"], "ledger"), (["--dtype", "float32"], "dtype"), (["--threads", "1"], "threads"),
     (["smollm2-135m"], "model")],
)  # fmt: skip
def test_what_has_no_say_beside_servers_is_refused_before_they_are_asked(arguments, field):
    result = CliRunner().invoke(app, ["audit", *SERVERS, *arguments])
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == field
    result = CliRunner().invoke(app, ["audit", *SERVERS])
    assert getattr(result.exception, "field", None) == "url", "nobody listens there"


def test_servers_are_held_against_their_own_plain_text(question):
    def command(*arguments):
        return CliRunner().invoke(app, ["audit", "none", "--prompts", question, "--max-tokens", "12", *arguments])

    honest = Fake(lambda body: list(body["messages"][0]["content"]))
    broken = Fake(lambda body: [*body["messages"][0]["content"][:-1], "!"])
    with serving(honest) as plain, serving(Fake(honest.say)) as spec, serving(broken) as wrong:
        same = command("--url", spec, "--plain-url", plain, "--json")
        different = command("--url", wrong, "--plain-url", plain, "--json")
    record = json.loads(same.stdout.splitlines()[-1])
    assert same.exit_code == 0
    assert record["checks"]["greedy"]["verdict"] == "CONSISTENT"
    assert record["checks"]["law"]["verdict"] == "UNTESTED"
    checks = json.loads(different.stdout.splitlines()[-1])["checks"]
    assert checks["greedy"]["different"] == 4
    assert checks["greedy"]["examples"][0]["speculative"].endswith("!")
    assert checks["greedy"]["verdict"] == "UNTESTED", "4 of 4 against 0 of 4 has p = 1/70"
    assert different.exit_code == 3


@pytest.mark.parametrize(("gap", "verdict"), [(0.01, "NUMERIC"), (1.0, "LOSSY"), (None, "LOSSY")])
def test_texts_of_a_server_that_part_at_near_ties_are_numeric(gap, verdict):
    prompts = [f"question {number}" for number in range(8)]
    honest = Fake(lambda body: list(body["messages"][0]["content"]), gap=gap)
    timings = {"draft_n": 4, "draft_n_accepted": 2}
    other = Fake(lambda body: [*body["messages"][0]["content"][:-1], "!"], timings=timings)
    with serving(honest) as plain, serving(other) as spec:
        checks = {check.name: check for check in remote_audit(connect(spec), connect(plain), prompts, 16)}
    assert checks["greedy"].verdict == verdict
    assert checks["greedy"].evidence["gaps"] == [None if gap is None else pytest.approx(gap)] * 8
    assert checks["greedy"].evidence["drafted"] == 96
    assert any("from character 9 on" in line for line in lines("title", verdict, [checks["greedy"]], None, 1.0))


def test_a_server_that_keeps_seeds_is_held_to_them():
    same, other = ["a", "b", "c", "d"], ["a", "b", "c", "e"]
    assert same_draws(Texts(same, same, same)).verdict == "CONSISTENT"
    assert same_draws(Texts(same, same, other)).verdict == "UNTESTED", "p/q keeps the law, not the text"
    assert "same seed in 1 of 4" in same_draws(Texts(same, other, other)).says


def test_a_llama_server_that_drafts_nothing_is_untested():
    honest = Fake(lambda body: list(body["messages"][0]["content"]), owner="llamacpp", timings={"predicted_n": 3})
    with serving(honest) as plain, serving(honest) as spec:
        checks = remote_audit(connect(spec), connect(plain), ["one", "two"], 16)
    assert {check.verdict for check in checks} == {"UNTESTED"}


def test_fishers_test_by_hand():
    assert fisher(4, 0, 4) == pytest.approx(1 / 70)
    assert fisher(3, 3, 8) > 0.5


def test_what_a_verdict_means_for_a_build():
    def verdict(*names):
        return overall([Check(str(i), name, "") for i, name in enumerate(names)])

    assert verdict("PROVED", "CONSISTENT", "LOSSY", "UNTESTED") == "LOSSY"
    assert verdict("PROVED", "NUMERIC", "CONSISTENT") == "NUMERIC"
    assert verdict("PROVED", "CONSISTENT") == "CONSISTENT"
    assert verdict("PROVED", "UNTESTED", "NUMERIC") == "UNTESTED"
    assert verdict("UNTESTED") == verdict() == "UNTESTED"
    assert overall([Check("law", "UNTESTED", "", arises=False), Check("greedy", "PROVED", "")]) == "PROVED"
    assert overall([Check("law", "UNTESTED", "", arises=False)]) == "UNTESTED"
    assert [exit_code(v) for v in ("PROVED", "CONSISTENT", "NUMERIC", "LOSSY", "UNTESTED")] == [0, 0, 0, 1, 3]
    assert exit_code("NUMERIC", strict=True) == 3
    [law] = without_blind([Check("law", "CONSISTENT", "x")], {"law"})
    assert law.verdict == "UNTESTED"


@pytest.mark.parametrize(
    "draft", [NGRAM | {"options": {"prompt_lookup_min": 30, "prompt_lookup_max": 30}}], ids=["never"]
)
def test_an_audit_in_which_nothing_is_drafted_is_inconclusive(plain, draft):
    checks = [name for name in CHECKS if name != "controls"]
    found = audit(plain, PROMPTS, AuditPlan(draft, minutes=0.02, checks=checks, max_tokens=8))
    checks = by_name(found)
    assert {name for name, check in checks.items() if check.verdict == "UNTESTED"} == {"greedy", "coupled", "law"}
    assert checks["rule"].verdict == "PROVED"
    assert (found.verdict, found.exit_code()) == ("UNTESTED", 3)
    page = "\n".join(lines("title", found.verdict, found.checks, None, 1.0))
    assert "inconclusive, for want of evidence in: greedy, coupled, law." in page


def test_an_audit_that_a_fault_escaped_is_inconclusive(plain, monkeypatch):
    monkeypatch.setattr(run, "greedy_control", lambda *_: Control("a fault", "greedy", found=False))
    plan = AuditPlan(NGRAM, minutes=0.02, checks=("rows", "rule", "greedy", "controls"), max_tokens=24)
    found = audit(plain, PROMPTS, plan)
    checks = by_name(found)
    assert (checks["rule"].verdict, checks["greedy"].verdict, checks["controls"].verdict) == (
        "PROVED", "UNTESTED", "UNTESTED",
    )  # fmt: skip
    assert (found.verdict, found.exit_code()) == ("UNTESTED", 3)


def test_controls_without_a_check_to_try_are_no_proof(plain):
    found = audit(plain, PROMPTS, AuditPlan(NGRAM, minutes=0.02, checks=("rows", "controls"), max_tokens=8))
    assert "no fault was put in" in by_name(found)["controls"].says
    assert found.exit_code() == 3


def test_what_a_rule_does_not_promise_leaves_no_gap(plain):
    plan = AuditPlan(NGRAM | {"rule": "block"}, minutes=0.02, checks=("rows", "coupled", "law"), max_tokens=24)
    found = audit(plain, PROMPTS, plan)
    checks = by_name(found)
    assert checks["coupled"].verdict == "UNTESTED"
    assert checks["law"].evidence["drafted_tokens"] > 0
    wealth = checks["law"].evidence["log_wealth"]
    assert wealth["lenience 2"] == 0.0 != wealth["temperature 0.9"], "the rule block hides the draft from the bets"
    assert (found.verdict, found.exit_code()) == ("CONSISTENT", 0)


def test_a_blind_law_check_excludes_nothing(plain, monkeypatch):
    monkeypatch.setattr("paceline.evaluation.audit.run.blind_checks", lambda controls: {"law"})
    found = audit(plain, PROMPTS, AuditPlan(NGRAM, minutes=0.05, checks=("law",), detect=16.0, max_tokens=24))
    assert by_name(found)["law"].verdict == "UNTESTED"
    assert found.smallest_effect_excluded is None
    assert not found.is_detected
    assert found.exit_code() == 3
