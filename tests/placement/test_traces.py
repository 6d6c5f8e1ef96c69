import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement.traces import read_arrivals, read_azure_trace


def write(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_time_and_model(tmp_path):
    workload = read_arrivals(write(tmp_path, "time,model\n0.5,1\n2,chat\n"), names=["chat", "code"])
    assert workload.times.tolist() == [0.5, 2.0]
    assert workload.models.tolist() == [1, 0]


def test_azure_columns(tmp_path):
    rows = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    trace = read_azure_trace(write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows))
    assert trace.times == pytest.approx([0, 4.314579], abs=1e-9)
    assert trace.prompt_tokens.tolist() == [374, 396]
    assert trace.output_tokens.tolist() == [44, 109]


def test_an_empty_azure_trace(tmp_path):
    assert len(read_azure_trace(write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n")).times) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("time,model\n1,0\n0.5,0\n", "comes after"),
        ("time,model\n1,who\n", "line 2: '1,who'"),
        ("time,model\n1\n", "line 2"),
        ("time,model\nsoon,0\n", "line 2"),
    ],
)
def test_bad_arrivals_are_refused(tmp_path, text, problem):
    with pytest.raises(InvalidParameter, match=problem):
        read_arrivals(write(tmp_path, text))


def test_bad_azure_traces_are_refused(tmp_path):
    late = "h\n2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n"
    for text, problem in ((late, "out of order"), ("h\nsoon,1,1\n", "line 2"), ("h\n2023-11-16,1\n", "line 2")):
        with pytest.raises(InvalidParameter, match=problem):
            read_azure_trace(write(tmp_path, text))
    with pytest.raises(InvalidParameter, match="cannot read"):
        read_azure_trace(tmp_path / "nowhere.csv")
    assert np.isfinite(read_azure_trace(write(tmp_path, "h\n2023-11-16,1,1\n")).times).all()
