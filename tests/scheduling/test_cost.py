"""Cost profiles: lines between measured points, files, and the budget chosen from them."""

import json

import pytest

from paceline.errors import InvalidParameter
from paceline.scheduling.budget import TILES, choose_budget, tile_of, trade_off
from paceline.scheduling.profile import Profile
from paceline.speculation import CostProfile

TABLE = {0: {1: 1.0, 4: 1.5}, 100: {1: 2.0, 4: 3.5}}
PROFILE = Profile("small", "f1", "float32", "NumbaModel", 2, "a machine", TABLE, {0: {16: 1.0}})


def test_straight_lines_and_the_last_one_prolonged():
    profile = CostProfile({1: 10.0, 4: 12.0, 8: 20.0})
    assert [profile(m) for m in (1, 2, 4, 6, 8, 10)] == pytest.approx([10, 10 + 2 / 3, 12, 16, 20, 24])
    assert CostProfile({2: 3.0})(1) == CostProfile({2: 3.0})(50) == 3.0


def test_a_disturbed_pass_counts_as_the_next_larger_one():
    disturbed = CostProfile({1: 10.0, 2: 90.0, 3: 12.0, 4: 13.0})
    assert [disturbed(m) for m in (1, 2, 3, 4)] == [10, 12, 12, 13]
    assert CostProfile.by_context({0: {1: 2.0}, 100: {1: 1.0}})(1, 50) == 2.0


def test_contexts_lie_on_lines_too():
    profile = CostProfile.by_context(TABLE)
    assert [profile(4, c) for c in (0, 50, 100, 150)] == pytest.approx([1.5, 2.5, 3.5, 4.5])
    assert profile(1) == 1.0
    assert profile.contexts == (0, 100)


@pytest.mark.parametrize("table", [{}, {0: 1.0}, {1: 0.0}, {1: float("nan")}])
def test_what_was_not_measured_is_refused(table):
    with pytest.raises(InvalidParameter, match="seconds_by_rows"):
        CostProfile(table)


@pytest.mark.parametrize("tables", [{}, {-1: {1: 1.0}}])
def test_contexts_must_be_there(tables):
    with pytest.raises(InvalidParameter, match="contexts"):
        CostProfile.by_context(tables)


def test_a_profile_survives_its_file(tmp_path):
    chosen = PROFILE.with_choice(64, 56, 8, 100.0)
    chosen.write(tmp_path / "new" / "profile.json")
    assert Profile.read(tmp_path / "new" / "profile.json") == chosen
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.pop("format"),
        lambda v: v.update(version=99),
        lambda v: v.pop("seconds"),
        lambda v: v.update(seconds={"0": {"1": -1}}),
        lambda v: v.update(colour="red"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_with_the_way_out(tmp_path, change):
    values = PROFILE.as_dict()
    change(values)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidParameter, match="paceline tune"):
        Profile.read(path)


@pytest.mark.parametrize("text", [None, "not json"])
def test_a_missing_or_foreign_file_is_refused(tmp_path, text):
    path = tmp_path / "profile.json"
    if text:
        path.write_text(text)
    with pytest.raises(InvalidParameter, match="profile"):
        Profile.read(path)


def cost(rows: int, context: float) -> float:
    return 0.010 + 0.001 * max(0, rows - 16)


def test_the_largest_budget_that_meets_the_target_is_chosen():
    choices = trade_off(cost, [4, 16, 32, 64, 128], num_decodes=8)
    assert [c.token_budget for c in choices] == [16, 32, 64, 128]
    assert choose_budget(choices, target_seconds=0.03).token_budget == 32
    chosen = choose_budget(choices, target_seconds=0.06)
    assert (chosen.token_budget, chosen.chunk) == (64, 56)
    assert chosen.prefill_rate == pytest.approx(56 / 0.058)


def test_without_a_target_the_smallest_budget_that_loses_little_is_enough():
    flat = trade_off(lambda rows, context: 0.001 * rows, [32, 64, 256], num_decodes=1)
    assert choose_budget(flat).token_budget == 32
    assert choose_budget(trade_off(cost, [16, 512], num_decodes=8)).token_budget == 512


def test_impossible_targets_say_what_is_possible():
    with pytest.raises(InvalidParameter, match=r"target_ms.*10\.0 ms"):
        choose_budget(trade_off(cost, [16, 32]), target_seconds=0.001)
    with pytest.raises(InvalidParameter, match="num_decodes"):
        trade_off(cost, [16, 32], num_decodes=32)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_the_tile_is_where_one_row_more_costs_a_whole_tile(width):
    points = {rows for tile in TILES for rows in (tile, tile + 1, 2 * tile)}
    stepped = {rows: 0.01 + 0.002 * -(-rows // width) for rows in points}
    assert tile_of(stepped) == width
    noisy = {rows: seconds * (1 + 0.002 * (rows % 3)) for rows, seconds in stepped.items()}
    assert tile_of(noisy) == width


def test_smooth_costs_have_no_tile():
    points = {rows for tile in TILES for rows in (tile, tile + 1, 2 * tile)}
    assert tile_of({rows: 0.01 + 0.001 * rows for rows in points}) is None
    assert tile_of({8: 0.01}) is None
