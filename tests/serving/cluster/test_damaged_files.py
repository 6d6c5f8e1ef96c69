"""Files that people and scripts get wrong: refused in one line that names the field, or read right."""

import json
import os

import numpy as np
import pytest

from paceline.cli.terminal.plans import plan_record, result_record
from paceline.errors import InvalidParameter
from paceline.placement import read_case, simulate
from paceline.placement.plan_file import read_placement
from paceline.placement.profiling import read_benchmarks
from paceline.placement.search import plan
from paceline.scheduling.profile import Profile
from paceline.serving.cluster.plan import read_plan
from tests.serving.cluster.mutations import CASE, FILES, ROWS, TOKEN_CASE, damaged

NUM_FILES = int(os.environ.get("PACELINE_DAMAGED_FILES", "160"))
EFFORT = 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    (path / "arrivals.csv").write_text("time,model\n" + "\n".join(ROWS) + "\n")
    (path / "case.json").write_text(json.dumps(CASE))
    (path / "token-case.json").write_text(json.dumps(TOKEN_CASE))
    return path


def outcome(kind, path, folder):
    """What a file says, as JSON without numbers that are none."""
    if kind == "profile":
        profile = Profile.read(path)
        seconds = [profile.batch_seconds(rows, 2, 100) for rows in (1, 8, 64)] + [profile.prefill_cost(4)]
        return json.dumps(seconds, allow_nan=False)
    if kind == "benchmark":
        (run,) = read_benchmarks(path)
        return json.dumps([run.concurrency, run.context, run.per_token], allow_nan=False)
    if kind in ("plan", "token-plan"):
        read_plan(path).queues()
        case = read_case(folder / ("case.json" if kind == "plan" else "token-case.json"))
        placement, _ = read_placement(path, case.models)
        return json.dumps(result_record(case, simulate(placement, case)), allow_nan=False)
    case = read_case(folder / "case.json" if kind == "trace" else path)
    made = plan(case, effort=EFFORT, allow_unplaceable=True)
    record = plan_record(case, made) | {"planning_seconds": 0.0, "history": []}
    return json.dumps(record, allow_nan=False)


def write(kind, text, folder):
    path = folder / ("arrivals.csv" if kind == "trace" else f"{kind}-damaged.json")
    path.write_text(text, encoding="utf-8", newline="")
    return path


@pytest.fixture(scope="module")
def undamaged(folder):
    texts = {kind: json.dumps(values) for kind, values in FILES.items()} | {
        "trace": (folder / "arrivals.csv").read_text()
    }
    return {kind: outcome(kind, write(kind, text, folder), folder) for kind, text in texts.items()}


@pytest.mark.filterwarnings("error")
def test_damaged_files_are_refused_by_name_or_read_right(folder, undamaged):
    wrong = []
    for seed in range(NUM_FILES):
        one = damaged(seed)
        path = write(one.kind, one.text, folder)
        try:
            with np.errstate(over="ignore"):
                said = outcome(one.kind, path, folder)
        except InvalidParameter as refusal:
            if one.verdict == "same" or "\n" in str(refusal) or len(str(refusal)) > 600:
                wrong.append(f"{seed} {one.kind} {one.how}: {refusal}")
        except Exception as error:
            wrong.append(f"{seed} {one.kind} {one.how}: {type(error).__name__}: {error}")
        else:
            if one.verdict == "refused" or (one.verdict == "same" and said != undamaged[one.kind]):
                wrong.append(f"{seed} {one.kind} {one.how}: accepted")
        finally:
            if one.kind == "trace":
                write("trace", "time,model\n" + "\n".join(ROWS) + "\n", folder)
    assert not wrong, "\n".join(wrong)
