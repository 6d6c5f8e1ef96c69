"""Measuring a model, keeping the profile, and an engine that reads it."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.config import EngineConfig
from paceline.engine.setup import load, profiles
from paceline.engine.setup.profiles import cached_profile, code_digest, find_profile, profile_path
from paceline.errors import InvalidParameter
from paceline.evaluation.tune import TunePlan, measure, profile_model
from paceline.scheduling.profile import Profile

PLAN = TunePlan(rows=(1, 4, 32), contexts=(0, 64), rounds=2)
CONFIG = EngineConfig(dtype="float32")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(profiles, "cache_dir", lambda: tmp_path)


def test_every_point_of_the_grid_is_measured(tiny):
    told = []
    table = measure(tiny.model, PLAN, progress=lambda done, total: told.append((done, total)))
    assert {c: set(t) for c, t in table.items()} == {0: {1, 4, 32}, 64: {1, 4, 32}}
    assert all(seconds > 0 for times in table.values() for seconds in times.values())
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_the_grid_is_cut_to_what_the_model_can_run(tiny):
    plan = TunePlan(rows=(1, 4, 9999), contexts=(0, 510)).within(512)
    assert (list(plan.rows), list(plan.contexts)) == ([1, 4], [0])
    assert list(TunePlan(contexts=(5000,), rows=(8,)).within(512).contexts) == [504]


@pytest.mark.parametrize("fields", [{"rows": ()}, {"rows": (0,)}, {"contexts": (-1,)}, {"rounds": 0}])
def test_impossible_grids_are_refused(fields):
    with pytest.raises(InvalidParameter, match=next(iter(fields))):
        TunePlan(**fields)


def test_a_cached_profile_is_found_by_model_and_way_of_running(tiny):
    assert cached_profile(tiny, CONFIG) is None
    profile = profile_model(tiny, CONFIG, PLAN)
    profile.write(profile_path(tiny, "float32"))
    assert find_profile(tiny, CONFIG) == profile
    assert find_profile(tiny, EngineConfig(dtype="bfloat16")) is None
    assert find_profile(tiny, EngineConfig(dtype="float32", profile="none")) is None


def test_a_profile_of_another_model_is_refused(tiny, tmp_path):
    profile_model(tiny, CONFIG, PLAN).write(tmp_path / "own.json")
    assert find_profile(tiny, EngineConfig(dtype="float32", profile=str(tmp_path / "own.json")))
    with pytest.raises(InvalidParameter, match="profile"):
        find_profile(tiny, EngineConfig(dtype="int8", profile=str(tmp_path / "own.json")))


def test_the_engine_takes_the_tuned_budget_unless_told_otherwise(tiny, engine_for, tmp_path):
    path = tmp_path / "own.json"
    profile_model(tiny, CONFIG, PLAN).with_choice(32, 24, 8, 100.0).write(path)
    tuned = {"dtype": "float32", "profile": str(path)}
    assert engine_for(**tuned).scheduler.config.max_num_batched_tokens == 32
    assert engine_for(**tuned, max_num_batched_tokens=48).scheduler.config.max_num_batched_tokens == 48
    assert engine_for().scheduler.config.max_num_batched_tokens == 128


@pytest.fixture
def tune_cli(tiny, monkeypatch):
    monkeypatch.setattr(load, "load", lambda name, config, progress: tiny)
    grid = ["--rows", "1", "--rows", "16", "--rows", "32", "--measure-context", "8", "--rounds", "1"]
    arguments = ["tune", "--model", "random-0", *grid, "--num-decodes", "4"]
    return lambda *more: CliRunner().invoke(app, [*arguments, *more])


def test_tune_writes_a_profile_shows_tables_and_draws(tune_cli, tmp_path):
    pytest.importorskip("matplotlib")
    output, plot = tmp_path / "profile.json", tmp_path / "plot.png"
    result = tune_cli("--output", str(output), "--plot", str(plot))
    assert result.exit_code == 0, result.output
    for words in ("t(M) / t(1)", "token budget", "chosen"):
        assert words in result.stdout
    assert json.loads(output.read_text())["token_budget"] in (16, 32)
    assert plot.stat().st_size > 1000


def test_tune_prints_what_it_keeps_in_the_cache(tune_cli, tiny):
    record = json.loads(tune_cli("--json", "--target-ms", "60000").stdout)
    assert record["token_budget"] == 32
    assert record["chunk"] == 28
    assert record["target_ms"] == 60000
    assert profile_path(tiny, "auto").exists()


def test_a_target_that_cannot_be_met_is_refused_after_the_profile_was_kept(tune_cli, tiny, monkeypatch):
    """Unless no pass at all could meet it, which is said before anything is measured."""
    monkeypatch.setattr("paceline.evaluation.tune.fastest_pass", lambda model: 0.0)
    result = tune_cli("--target-ms", "0.0001")
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == "target_ms"
    assert profile_path(tiny, "auto").exists(), "two minutes of measuring are lost"


def test_further_requests_and_the_step_itself_are_measured(tiny, tmp_path):
    profile = profile_model(tiny, CONFIG, PLAN)
    assert set(profile.segment_seconds) == {0, 64}
    assert min(profile.segment_seconds.values()) >= 0
    assert profile.step_overhead is not None
    profile.write(tmp_path / "p.json")
    assert Profile.read(tmp_path / "p.json") == profile
    one, both = replace(profile, segment_seconds={0: 1.0, 100: 3.0}), profile.cost(4, 50)
    assert one.batch_seconds(4, 3, 50) == pytest.approx(both + 2 * 2.0)
    assert one.batch_seconds(4, 1, 50) == both


def test_a_damaged_profile_in_the_cache_is_removed(tiny):
    path = profile_path(tiny, "float32")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(100))
    assert cached_profile(tiny, CONFIG) is None
    assert not path.exists()


def test_a_profile_of_older_code_is_not_taken(tiny, tmp_path, monkeypatch):
    """Its passes may cost otherwise now, and drafts of a length that pays with those prices may not."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    before = profile_path(tiny, "float32")
    assert profile_path(tiny, "float32") == before
    monkeypatch.setattr("paceline.engine.setup.profiles.code_digest", lambda folder: "other")
    assert profile_path(tiny, "float32") != before
    (tmp_path / "a.py").write_text("one")
    digest = code_digest.__wrapped__(tmp_path)
    (tmp_path / "a.py").write_text("two")
    assert code_digest.__wrapped__(tmp_path) != digest


@pytest.mark.parametrize(
    ("num_measured", "says"),
    [
        (0, "ended before everything was measured; nothing is written"),
        (1, "ended; the profile of mine is kept (PATH), that of draft is not written"),
    ],
)
def test_ctrl_c_says_which_profile_is_kept(tiny, tmp_path, monkeypatch, num_measured, says):
    measured = [(tiny, profile_model(tiny, CONFIG, PLAN))] * num_measured

    def profile_of(*_):
        if not measured:
            raise KeyboardInterrupt
        return measured.pop()

    monkeypatch.setattr("paceline.cli.tune._profile_of", profile_of)
    monkeypatch.setattr("paceline.models.resolve.resolve_model", lambda name: None)
    path = tmp_path / "p.json"
    result = CliRunner().invoke(app, ["tune", "-m", "mine", "--draft-model", "draft", "--rows", "9", "-o", str(path)])
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == says.replace("PATH", str(path)) + "\n"
    assert path.exists() == bool(num_measured)
