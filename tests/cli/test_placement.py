"""`paceline place` and `paceline simulate`: what scripts read, flags on top of files, and what is refused."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.options.case import ScaledCase, check_outputs
from paceline.cli.place import POLICIES
from paceline.cli.terminal.plans import roles_summary
from paceline.errors import InvalidParameter
from paceline.placement import Placement
from paceline.placement.search import NAMES
from paceline.placement.search.disaggregated import SeparateRoles
from paceline.serving.cluster.plan import read_plan

runner = CliRunner()

CASE = {
    "num_devices": 2,
    "mem_budget": 4.5e9,
    "models": [
        {"name": "a", "type": "small", "rate": 3, "cv": 3, "slo": 0.3},
        {"name": "b", "type": "small", "rate": 1, "slo": 0.3},
    ],
    "profiles": {
        "small": [
            {"op": 1, "pp": 1, "latency": [0.1], "weight_mem": [3e9]},
            {"op": 1, "pp": 2, "latency": [0.051, 0.051], "weight_mem": [1.5e9, 1.5e9]},
        ]
    },
    "duration": 200,
}


@pytest.fixture
def case_file(tmp_path):
    path = tmp_path / "case.json"
    path.write_text(json.dumps(CASE))
    return str(path)


def invoke(*arguments):
    result = runner.invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*arguments):
    result = runner.invoke(app, list(map(str, arguments)))
    assert isinstance(result.exception, InvalidParameter), result.output
    return result.exception


def test_place_prints_the_object_that_scripts_read(case_file):
    record = json.loads(invoke("place", "--case", case_file, "--json"))
    assert record["groups"] == [[1, 2, [0, 1]]]  # a pipeline takes the bursts of either model
    assert 0 < record["slo_attainment"] <= 1
    assert record["mean_latency_served"] > 0.1
    assert record["planning_seconds"] > 0
    assert record["finished"] is True
    assert record["models"] == ["a", "b"]


def test_a_policy_by_name_runs_a_baseline(case_file):
    apart = json.loads(invoke("place", "--case", case_file, "--policy", "sr-uniform", "--json"))
    assert apart["groups"] == [[1, 1, [0]], [1, 1, [1]]]
    ours = json.loads(invoke("place", "--case", case_file, "--json"))
    assert ours["slo_attainment"] > apart["slo_attainment"]


def test_the_width_of_a_beam_is_an_option(case_file):
    wide = json.loads(invoke("place", "--case", case_file, "--policy", "mp-beam", "--beam-width", 2, "--json"))
    assert wide["policy"] == "mp-beam" and wide["slo_attainment"] > 0
    refused = refusal("place", "--case", case_file, "--beam-width", 2)
    assert refused.field == "beam_width" and "mp-beam" in refused.remedy


def test_clockwork_tells_its_windows(case_file):
    record = json.loads(invoke("place", "--case", case_file, "--policy", "clockwork++", "--window", 100, "--json"))
    assert [window["start"] for window in record["windows"]] == [0, 100]


def test_a_plan_file_goes_into_simulate(case_file, tmp_path):
    plan = tmp_path / "plan.json"
    said = invoke("place", "--case", case_file, "--output", plan)
    record = json.loads(plan.read_text())
    assert f"{record['slo_attainment']:.2%}" in said and "planned in" in said
    same = json.loads(invoke("simulate", "--plan", plan, "--case", case_file, "--json"))
    assert same["slo_attainment"] == record["slo_attainment"]
    assert same["model_attainment"] == record["model_attainment"]
    assert "in time" in invoke("simulate", "--plan", plan, "--case", case_file)


def test_tables_go_where_the_summary_goes(case_file, tmp_path):
    plan = tmp_path / "plan.json"
    for said in (
        invoke("place", "--case", case_file, "--output", plan),
        invoke("simulate", "--plan", plan, "--case", case_file),
    ):
        assert said.startswith("groups") and "\nmodels" in said and "in time" in said


@pytest.fixture
def batched_file(tmp_path):
    entry = {"op": 1, "pp": 1, "latency": [0.1], "weight_mem": [3e9]}
    entry["batch_latency"] = {"2": [0.11], "4": [0.13], "8": [0.17]}
    models = [{"name": "a", "type": "small", "rate": 15, "slo": 2.0}]
    path = tmp_path / "batched.json"
    path.write_text(json.dumps(CASE | {"num_devices": 4, "models": models, "profiles": {"small": [entry]}}))
    return str(path)


def test_profiled_batches_are_used_unless_switched_off(batched_file, tmp_path):
    def placed(*flags):
        plan = tmp_path / "plan.json"
        said = invoke("place", "--case", batched_file, "--reach", 0.99, "--no-held-out", "--output", plan, *flags)
        return json.loads(plan.read_text()), said, plan

    record, said, plan = placed()
    assert len(record["groups"]) == 1 and record["batch_sizes"] == [1, 2, 4, 8]
    assert "batches of 1, 2, 4, 8" in said
    assert "batches of 1, 2, 4, 8" in invoke("simulate", "--plan", plan, "--case", batched_file)
    simulated = json.loads(invoke("simulate", "--plan", plan, "--case", batched_file, "--json"))
    assert simulated["slo_attainment"] == record["slo_attainment"] >= 0.99
    alone = json.loads(invoke("simulate", "--plan", plan, "--case", batched_file, "--batch-sizes", "1", "--json"))
    assert alone["slo_attainment"] < 0.8
    with pytest.raises(InvalidParameter, match=r"batch_sizes.*--batch-sizes 1"):
        read_plan(plan)

    record, said, plan = placed("--batch-sizes", "1")
    assert len(record["groups"]) == 2 and "batch_sizes" not in record and "batches" not in said
    assert read_plan(plan).queues()[0].seconds("a") == record["stage_seconds"][0][0]


def test_what_serving_adds_is_an_option(case_file, tmp_path):
    plan = tmp_path / "plan.json"
    tight = ("--slo-scale", 0.34)  # 0.102 s for a pass of 0.1 s
    assert refusal("place", "--case", case_file, *tight).field == "slo"
    without = ("--overhead", 0, "--stage-overhead", 0)
    invoke("place", "--case", case_file, *tight, *without, "--output", plan)
    record = json.loads(plan.read_text())
    assert record["overhead"] == 0.0 and record["slo_attainment"] > 0
    stages = {1: [0.1], 2: [0.051, 0.051]}
    assert record["stage_seconds"] == [[stages[pp]] * len(models) for _, pp, models in record["groups"]]
    again = ("simulate", "--plan", plan, "--case", case_file, "--json", *tight)
    assert json.loads(invoke(*again, *without))["slo_attainment"] == record["slo_attainment"]
    assert json.loads(invoke(*again))["slo_attainment"] == 0.0


@pytest.mark.parametrize(
    ("flags", "field"),
    [(("--overhead", -1), "overhead"), (("--stage-overhead", "inf"), "stage_overhead"),
     (("--batch-sizes", "two"), "batch_sizes"), (("--batch-sizes", "1,2"), "batch_sizes")],
)  # fmt: skip
def test_rules_that_cannot_be_are_refused(case_file, flags, field):
    assert refusal("place", "--case", case_file, *flags).field == field


def test_scaled_traffic_and_deadlines(case_file, tmp_path):
    plan = tmp_path / "plan.json"
    invoke("place", "--case", case_file, "--output", plan)

    def attainment(*flags):
        return json.loads(invoke("simulate", "--plan", plan, "--case", case_file, "--json", *flags))["slo_attainment"]

    assert attainment("--rate-scale", 3) < attainment() < attainment("--slo-scale", 3)
    assert attainment("--cv-scale", 3) < attainment("--cv-scale", 0.5)


@pytest.mark.parametrize(("option", "factor"), [("rate", 1e-300), ("rate", 1e-10), ("cv", 1e9), ("cv", float("nan"))])
def test_a_factor_that_leads_nowhere_is_named(case_file, tmp_path, option, factor):
    plan = tmp_path / "plan.json"
    invoke("place", "--case", case_file, "--output", plan)
    refused = refusal("simulate", "--plan", plan, "--case", case_file, f"--{option}-scale", factor)
    assert refused.field == f"{option}_scale" and f"{factor:g}" in refused.problem


def test_a_word_of_a_model_is_given_once(case_file):
    refused = refusal("place", "--case", case_file, "--model", "small rate=2 rate=3")
    assert refused.field == "model" and "sets rate twice" in refused.problem


def test_a_seed_is_that_of_drawn_arrivals_in_place_of_the_cases(tmp_path):
    def means(seed, *flags):
        case = tmp_path / "seeded.json"
        case.write_text(json.dumps(CASE | ({} if seed is None else {"seed": seed})))
        return json.loads(invoke("place", "--case", case, "--policy", "sr-greedy", "--json", *flags))[
            "mean_latency_served"
        ]

    assert means(None) == means(0) == means(7, "--seed", 0)
    assert means(7) == means(None, "--seed", 7) != means(0)


def test_burstier_traffic_keeps_the_lengths_of_its_requests(tmp_path):
    tokens = {"tokens": {"seconds": {"0": {"1": 0.01}}}, "weight_mem": [1e9], "kv_bytes": 1.0}
    rows = [f"{at / 4},a,400,100" if at % 2 else f"{at / 4},b,9,2" for at in range(400)]
    (tmp_path / "trace.csv").write_text("\n".join(rows))
    models = [{"name": "a", "type": "t", "slo": 9}, {"name": "b", "type": "t", "slo": 9}]
    case = {"num_devices": 1, "mem_budget": 9e9, "models": models, "profiles": {"t": [tokens]}, "arrivals": "trace.csv"}
    (tmp_path / "case.json").write_text(json.dumps(case))
    workload = ScaledCase(case=tmp_path / "case.json", cv_scale=2.0).load().workload
    lengths = {0: (400, 100), 1: (9, 2)}
    found = zip(workload.models, workload.prompt_tokens, workload.output_tokens, strict=True)
    assert workload.num_requests > 200 and all(lengths[m] == (p, o) for m, p, o in found)


def test_flags_replace_a_file(case_file, tmp_path):
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text(yaml.safe_dump({"small": CASE["profiles"]["small"]}))
    flags = ("--profiles", profiles, "--num-devices", 2, "--mem-budget", 4.5e9, "--duration", 200)
    models = ("--model", "small rate=3 cv=3 slo=0.3 name=a", "--model", "small rate=1 slo=0.3 name=b")
    alone = json.loads(invoke("place", *flags, *models, "--json"))
    from_file = json.loads(invoke("place", "--case", case_file, "--json"))
    same = ("groups", "slo_attainment", "mean_latency_served", "models")
    assert {name: alone[name] for name in same} == {name: from_file[name] for name in same}
    four = json.loads(invoke("place", *flags, "--model", "small rate=1 slo=0.3 count=4", "--json"))
    assert four["models"] == ["small-0", "small-1", "small-2", "small-3"]


def test_plot_of_the_search(case_file, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "search.png"
    invoke("place", "--case", case_file, "--plot", path)
    assert path.stat().st_size > 1000


def test_explain_says_why(case_file):
    record = json.loads(invoke("place", "--case", case_file, "--explain", "--json"))
    why = record["explanation"]
    assert why["groups"][0]["models"] == ["a", "b"]
    assert why["splits"][0]["instead"] == "single devices" and why["splits"][0]["attainment"] > 0
    assert why["interference"]["attainment"][0][1] >= 0
    assert sum(why["models"][0][reason] for reason in ("attainment", "no_replica", "too_slow", "queueing")) == 1
    assert "in time" in invoke("place", "--case", case_file, "--explain")


def test_explain_plots_interference(case_file, tmp_path):
    pytest.importorskip("matplotlib")
    invoke("place", "--case", case_file, "--explain", "--plot", tmp_path / "who.png")
    assert (tmp_path / "who.png").stat().st_size > 1000


def test_clockwork_has_no_one_plan_to_explain(case_file):
    assert refusal("place", "--case", case_file, "--policy", "clockwork++", "--explain").field == "explain"


def test_drafters_get_a_place_that_a_plan_file_keeps(tmp_path):
    draft = {"type": "drafter", "output_tokens": 100, "acceptance_rate": 0.8}
    profiles = {
        "target": [{"latency": [0.03], "weight_mem": [3e9]}],
        "drafter": [{"latency": [0.005], "weight_mem": [1e9]}],
    }
    models = [{"name": "chat", "type": "target", "rate": 0.2, "slo": 2.5, "draft": draft}]
    values = {"num_devices": 2, "mem_budget": 3.5e9, "models": models, "profiles": profiles, "duration": 200}
    case, plan = tmp_path / "case.yaml", tmp_path / "plan.json"
    case.write_text(yaml.safe_dump(values))
    record = json.loads(invoke("place", "--case", case, "--output", plan, "--json"))
    assert record["drafts"] == {"chat": "apart"} and record["groups"] == [[1, 2, [0]]]
    assert {"drafts": {"chat": "plain"}, "slo_attainment": None} in record["drafts_tried"]
    same = json.loads(invoke("simulate", "--plan", plan, "--case", case, "--json"))
    assert same["slo_attainment"] == record["slo_attainment"]
    assert "in time" in invoke("place", "--case", case)
    plan.write_text(json.dumps(record | {"drafts": {}}))
    assert refusal("simulate", "--plan", plan, "--case", case).field == "drafts"
    plan.write_text(json.dumps(record | {"drafts": {"code": "apart"}}))
    assert refusal("simulate", "--plan", plan, "--case", case).field == "plan"


@pytest.mark.parametrize(
    ("arguments", "field", "number"),
    [
        (("--policy", "magic"), "policy", "magic"),
        (("--num-devices", "0"), "num_devices", "0"),
        (("--mem-budget", "1e9"), "mem_budget", "1500000000"),
        (("--slo-scale", "0.1"), "slo", "0.1"),
        (("--rate-scale", "-1"), "rate_scale", "-1"),
        (("--time-budget", "0"), "time_budget", "0"),
        (("--model", "small rate=-2"), "rate", "-2"),
        (("--model", "large rate=2"), "profiles", "large"),
        (("--model", "small speed=2"), "model", "speed"),
        (("--model", "small count=0"), "model", "count=0"),
        (("--duration", "0"), "arrivals", "none"),
        (("--seed", "-1"), "seed", "-1"),
        (("--mem-budget", "inf"), "mem_budget", "inf"),
        (("--model", "small rate=1e12"), "rate", "2e+14"),
        (("--num-devices", "1000000000"), "num_devices", "65536"),
        (("--output", "/dev/null/plan.json"), "output", "/dev/null"),
        (("--plot", "/dev/null/plan.png"), "plot", "/dev/null"),
        (("--plot", "plan.foo"), "plot", "plan.foo"),
        (("--time-budget", "nan"), "time_budget", "nan"),
        (("--pools", "1e-12"), "pools", "1e-12 GB/s"),
        (("--pools", "nan"), "pools", "nan"),
    ],
)
def test_bad_flags_are_refused_by_name_and_number(case_file, arguments, field, number):
    error = refusal("place", "--case", case_file, *arguments)
    assert error.field == field
    assert number in str(error)


@pytest.mark.parametrize(
    ("text", "field"),
    [("{", "case"), ("[]", "case"), ("{}", "case"), ('{"models": []}', "profiles"), ('{"models": 3}', "models")],
)
def test_malformed_case_files(tmp_path, text, field):
    path = tmp_path / "case.json"
    path.write_text(text)
    assert refusal("place", "--case", path).field == field


def test_a_plan_for_another_cluster_is_refused(case_file, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"groups": [[1, 2, [0]], [1, 1, [1]]]}))
    assert "3 devices" in str(refusal("simulate", "--plan", plan, "--case", case_file))
    plan.write_text("{}")
    assert refusal("simulate", "--plan", plan, "--case", case_file).field == "plan"


def test_a_plan_for_other_models_is_refused(case_file, tmp_path):
    plan = tmp_path / "plan.json"
    invoke("place", "--case", case_file, "--output", plan)
    other = ("--model", "small rate=1 slo=0.3 name=a", "--model", "small rate=1 slo=0.3 name=c")
    assert "model 1 is 'b'" in str(refusal("simulate", "--plan", plan, "--case", case_file, *other))
    invoke("place", "--case", case_file, "--policy", "clockwork++", "--window", 100, "--output", plan)
    assert "for each window" in str(refusal("simulate", "--plan", plan, "--case", case_file))


def test_a_drafter_that_there_is_not_is_refused_before_anything_is_planned(tmp_path):
    path = tmp_path / "case.json"
    models = [CASE["models"][0] | {"speculative": "nonsense"}, *CASE["models"][1:]]
    path.write_text(json.dumps(CASE | {"models": models}))
    error = refusal("place", "--case", path)
    assert models[0]["name"] in error.field and "paceline generate --help" in error.remedy


def test_help_names_every_policy():
    assert POLICIES.split(", ") == list(NAMES)


@pytest.mark.parametrize("command", ["place", "simulate"])
def test_help_shows_examples(command):
    assert "Examples" in invoke(command, "--help")


def test_pools_that_answer_nothing_are_told_as_such():
    found = SeparateRoles(Placement(), Placement(), 0.0, tried=3)
    assert roles_summary(found, 0.5) == (
        "no devices that only read prompts or only generate answer a request in time (3 pairs tried)"
    )


def test_the_fewest_devices_that_reach_an_attainment_and_what_they_cost(case_file, tmp_path):
    plan, asked = tmp_path / "plan.json", ("place", "--case", case_file, "--num-devices", 6, "--policy", "sr-greedy")
    best = json.loads(invoke(*asked, "--json"))["slo_attainment"]
    record = json.loads(invoke(*asked, "--reach", best - 0.02, "--price", 1.5, "--output", plan, "--json"))
    tried = {int(devices): reached for devices, reached in record["attainment_by_devices"].items()}
    assert record["slo_attainment"] == tried[record["num_devices"]] >= best - 0.02 and tried[6] == best
    assert all(reached < best - 0.02 for devices, reached in tried.items() if devices < record["num_devices"])
    assert record["cost_per_hour"] == 1.5 * record["num_devices"]
    invoke("simulate", "--plan", plan, "--case", case_file, "--num-devices", record["num_devices"])
    assert "9 per hour" in invoke(*asked, "--price", 1.5)
    assert refusal(*asked, "--reach", 1.0, "--slo-scale", 0.5).field in ("reach", "profiles", "slo", "models")
    assert refusal(*asked, "--price", 0).field == "price"


def test_an_output_in_a_missing_folder_is_made_and_one_that_cannot_be_written_refused(tmp_path):
    check_outputs(tmp_path / "new" / "deeper" / "plan.json")
    assert (tmp_path / "new" / "deeper").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(InvalidParameter, match="output: "):
        check_outputs(tmp_path / "file" / "plan.json")
