"""Plan files: what they say, and what is refused with the field's name."""

import json

import pytest

from paceline.errors import InvalidParameter
from paceline.serving.cluster.plan import plan_of, read_plan
from paceline.serving.cluster.ticket import Ticket

CHAT = {"name": "chat", "path": "weights/chat", "slo": 0.5, "engine": {"dtype": "int8"}, "num_tokens": 8}
PLAN = {
    "groups": [[1, 1, [0]], [1, 2, [0, 1]]],
    "models": [CHAT, "code"],
    "stage_seconds": [[[0.1]], [[0.06, 0.06], [0.2, 0.2]]],
    "overhead": 0.01,
}


def test_a_plan_says_what_is_started(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    plan = read_plan(path)
    chat, code = plan.models
    assert (chat.path, chat.slo, dict(chat.engine), chat.size(16)) == ("weights/chat", 0.5, {"dtype": "int8"}, 2.0)
    assert (code.path, code.slo, code.size(16)) == ("code", float("inf"), 1.0)
    assert plan.held_by(1) == (chat, code)
    assert plan.queues()[1].seconds("code") == [0.2, 0.2]
    assert plan.with_paths({"code": "elsewhere"}).model("code").path == "elsewhere"


def test_the_head_of_a_pipelines_model_counts_by_the_time_that_goes_to_decodes():
    models = [{"name": "a", "num_tokens": 4, "prompt_tokens": 96}, {"name": "b", "num_tokens": 4}]
    models += [models[0] | {"name": "c", "engine": {"pipeline_head_share": 0.5}}]
    found = plan_of({"groups": [[1, 2, [0, 1, 2]]], "models": models}).models
    assert [dict(model.options) for model in found] == [
        {"pipeline_head_share": 0.25}, {}, {"pipeline_head_share": 0.5}
    ]  # fmt: skip


def test_a_planners_record_is_enough():
    record = {"case": "x", "policy": "auto", "groups": [[1, 1, [0, 1]]], "models": ["a", "b"], "slo_attainment": 1.0}
    plan = plan_of(record | {"serving": [{"name": "a", "path": "p", "slo": 1e9}, {"name": "b"}]})
    assert [model.path for model in plan.models] == ["p", "b"]
    assert plan.models[0].slo == float("inf")
    assert plan.queues()[0].standing(Ticket("0", "a", 0.0, deadline=1.0), 0.0).problem is None
    assert [model.name for model in plan_of(record).models] == ["a", "b"]


def test_a_drafter_on_a_device_of_its_own_cannot_be_started():
    assert plan_of(PLAN | {"drafts": {"chat": "together"}}).models[0].name == "chat"
    with pytest.raises(InvalidParameter, match=r"drafts.*chat"):
        plan_of(PLAN | {"drafts": {"chat": "apart"}})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"groups": []}, "groups"),
        ({"groups": [[1, 1]]}, "groups"),
        ({"groups": [[0, 1, [0, 1]]]}, "groups[0]"),
        ({"groups": [[1, 1, [0, 2]], [1, 2, [0, 1]]]}, "groups"),
        ({"models": ["a", "a"]}, "models"),
        ({"models": "a"}, "models"),
        ({"models": [{"path": "p"}, "b"]}, "models[0]"),
        ({"models": [{"name": "a", "pth": "p"}, "b"]}, "models[0]"),
        ({"models": [{"name": "a", "prompt_tokens": 0}, "b"]}, "models.a.prompt_tokens"),
        ({"models": [{"name": "a", "speculative": {"num_draft_tokens": 3}}, "b"]}, "method"),
        ({"models": [{"name": "a", "speculative": 4}, "b"]}, "speculative"),
        ({"models": [{"name": "a", "speculative": "nonsense"}, "b"]}, "models[0].speculative"),
        ({"models": [{"name": "a", "slo": -1}, "b"]}, "models.a.slo"),
        ({"models": [{"name": "a", "slo": "1 s"}, "b"]}, "models[0].slo"),
        ({"models": [{"name": "a", "engine": {"dtpe": "int8"}}, "b"]}, "dtpe"),
        ({"models": [{"name": "a", "engine": {"num_threads": 2}}, "b"]}, "models.a.engine"),
        ({"stage_seconds": [[[0.1]]]}, "stage_seconds"),
        ({"stage_seconds": [[[0.1]], [[0.06], [0.2, 0.2]]]}, "stage_seconds[1]"),
        ({"stage_seconds": [[[0.0]], [[0.06, 0.1], [0.2, 0.2]]]}, "stage_seconds[0]"),
        ({"stage_seconds": [["x"]]}, "stage_seconds"),
        ({"stage_seconds": [["1"], [["0.06", 0.1], [0.2, 0.2]]]}, "stage_seconds"),
        ({"stage_seconds": [[{"0.1": 1}], [[0.06, 0.1], [0.2, 0.2]]]}, "stage_seconds"),
        ({"groups": [[1, 1, [0, 1]], [1, 2, []]], "stage_seconds": None}, "groups"),
        ({"overhead": -1}, "overhead"),
        ({"overhead": 1e300}, "overhead"),
        (
            {"groups": [[1, 1, [0]]], "stage_seconds": None, "pass_profiles": [[{"seconds": {0: {1: -2}}}]]},
            "pass_profiles[0][0]",
        ),
    ],
)
def test_what_cannot_be_used_is_named(change, field):
    with pytest.raises(InvalidParameter) as refusal:
        plan_of(PLAN | change)
    assert refusal.value.field == field


def test_models_that_found_no_place_are_not_held():
    plan = plan_of({"groups": [[1, 1, [2]], [1, 1, [0, 2]]], "models": ["a", "b", "c"]})
    assert [model.name for model in plan.held] == ["a", "c"]


def test_a_file_that_is_no_plan_is_named(tmp_path):
    for text in ("[]", "{"):
        path = tmp_path / "plan.json"
        path.write_text(text)
        with pytest.raises(InvalidParameter, match=r"plan\.json"):
            read_plan(path)
    with pytest.raises(InvalidParameter, match="nowhere"):
        read_plan(tmp_path / "nowhere.json")


def test_all_groups_together_have_the_seats_of_all_their_engines():
    models = [{"name": "a", "engine": {"max_num_seqs": 8}}, "b"]
    assert plan_of({"groups": [[1, 1, [0, 1]], [1, 2, [0]]], "models": models}).num_seats == 8 + 64 + 8
