import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement.traces import read_arrivals


def write(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_time_and_model(tmp_path):
    workload = read_arrivals(write(tmp_path, "time,model\n0.5,1\n2,chat\n"), names=["chat", "code"])
    assert workload.times.tolist() == [0.5, 2.0]
    assert workload.models.tolist() == [1, 0]


def test_columns_are_found_by_their_names(tmp_path):
    text = "time,model,output_tokens,prompt_tokens\n0.5,1,44,374\n2,chat,109,396\n"
    workload = read_arrivals(write(tmp_path, text), names=["chat", "code"])
    assert workload.models.tolist() == [1, 0]
    assert workload.prompt_tokens.tolist() == [374, 396] and workload.output_tokens.tolist() == [44, 109]
    assert read_arrivals(write(tmp_path, "model,t\n1,0.5\n0,2\n")).models.tolist() == [1, 0]
    assert read_arrivals(write(tmp_path, "3,0,10,20\n")).output_tokens.tolist() == [20]


def test_a_model_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(InvalidParameter, match="line 1: there is no model 'chatt'; use one of chat, code"):
        read_arrivals(write(tmp_path, "5,chatt\n"), names=["chat", "code"])


def test_a_trace_of_azure_is_the_arrivals_of_one_model(tmp_path):
    rows = "2023-11-16 18:15:46.6805900,374,44,0\n2023-11-16 18:15:50.9951690,396,109,0\n"
    path = write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens,window10min\n" + rows)
    workload = read_arrivals(path, names=["chat"])
    assert workload.times == pytest.approx([0, 4.314579], abs=1e-9) and workload.models.tolist() == [0, 0]
    assert workload.prompt_tokens.tolist() == [374, 396] and workload.output_tokens.tolist() == [44, 109]
    with pytest.raises(InvalidParameter, match="which of 2 models"):
        read_arrivals(path, names=["chat", "code"])


def test_bad_traces_of_azure_are_refused(tmp_path):
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    late = "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n"
    for rows, problem in ((late, "comes after"), ("soon,1,1\n", "line 2"), ("2023-11-16,1\n", "line 2")):
        with pytest.raises(InvalidParameter, match=problem):
            read_arrivals(write(tmp_path, header + rows))
    with pytest.raises(InvalidParameter, match="cannot read"):
        read_arrivals(tmp_path / "nowhere.csv")
    assert len(read_arrivals(write(tmp_path, header)).times) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("time,model\n1,0\n0.5,0\n", "comes after"),
        ("time,model\n1,who\n", "line 2: there is no model 'who'"),
        ("time,model,promt_tokens\n1,0,5\n", "unknown column 'promt_tokens'"),
        ("model,prompt_tokens,output_tokens\n0,5,5\n", "no column of times"),
        ("time,model,prompt_tokens\n1,0,5\n", "not of both"),
        ("time,t,model\n1,1,0\n", "two columns for time"),
        ("time,model\n1,0,5,5\n", "line 2"),
        ("1,0\n2,0,5,5\n", "line 2"),
        ("1,0,5\n", "line 1"),
        ("time,model\n1\n", "line 2"),
        ("time,model\nsoon,0\n", "line 2"),
    ],
)
def test_bad_arrivals_are_refused(tmp_path, text, problem):
    with pytest.raises(InvalidParameter, match=problem):
        read_arrivals(write(tmp_path, text))


def test_a_file_without_a_header_keeps_its_first_row(tmp_path):
    assert read_arrivals(write(tmp_path, "0.5,1\n2,0\n")).times.tolist() == [0.5, 2.0]


def test_times_alone_are_the_arrivals_of_one_model(tmp_path):
    for text in ("0.5\n2\n", "time\n0.5\n2\n"):
        assert read_arrivals(write(tmp_path, text), names=["chat"]).times.tolist() == [0.5, 2.0]
        with pytest.raises(InvalidParameter, match="which of 2 models"):
            read_arrivals(write(tmp_path, text), names=["chat", "code"])


def test_a_file_of_dates_without_a_header_keeps_its_first_row(tmp_path):
    assert read_arrivals(write(tmp_path, "2023-11-16 18:15:46,0\n2023-11-16 18:15:47,0\n")).times.tolist() == [0, 1]


@pytest.mark.parametrize("columns", ["1,2", "Trigger,2,1", "Trigger,1,3"])
def test_functions_of_2019_with_other_columns_are_refused(tmp_path, columns):
    text = f"HashOwner,HashApp,HashFunction,{columns}\no,a,f,7,0,1\n"
    with pytest.raises(InvalidParameter, match="other columns than Trigger and the minutes"):
        read_arrivals(write(tmp_path, text))


def test_more_invocations_than_fit_are_refused_before_they_are_drawn(tmp_path):
    header = "HashOwner,HashApp,HashFunction,Trigger,1,2"
    with pytest.raises(InvalidParameter, match="requests until line 3"):
        read_arrivals(write(tmp_path, f"{header}\no,a,f,http,1,2\no,a,g,http,2000000000,2\n"))


def test_seconds_since_an_epoch_count_from_the_first_request(tmp_path):
    assert read_arrivals(write(tmp_path, "time,model\n1700000000.5,0\n1700000002,0\n")).times.tolist() == [0.0, 1.5]
    with pytest.raises(InvalidParameter, match="milliseconds"):
        read_arrivals(write(tmp_path, "time,model\n1700000000500,0\n"))


def test_functions_of_2019_are_counts_by_the_minute(tmp_path):
    header = "HashOwner,HashApp,HashFunction,Trigger," + ",".join(map(str, range(1, 1441)))
    rows = ["o,a,f,http," + ",".join(["3", "0", "1", *["0"] * 1437]), "o,a,g,http," + ",".join(["2", *["0"] * 1439])]
    workload = read_arrivals(write(tmp_path, "\n".join([header, *rows])), names=["chat", "code"])
    assert np.bincount(workload.models).tolist() == [4, 2]
    minutes = np.floor(workload.times_of(0) / 60)
    assert minutes.tolist() == [0, 0, 0, 2] and (workload.times_of(1) < 60).all()
    with pytest.raises(InvalidParameter, match="line 2"):
        read_arrivals(write(tmp_path, f"{header}\no,a,f,http,-1\n"))


def test_functions_of_2021_are_invocations(tmp_path):
    header = "app,func,end_timestamp,duration\n"
    workload = read_arrivals(
        write(tmp_path, header + "a,f,15.5,5.0\na,g,12.0,1.0\na,f,20,0\na,h,21,1\n"), ["chat", "code"]
    )
    assert workload.times.tolist() == pytest.approx([10.5, 11.0, 20.0, 20.0])
    assert workload.models.tolist() == [0, 1, 0, 0]
    with pytest.raises(InvalidParameter, match="line 2"):
        read_arrivals(write(tmp_path, header + "a,f,soon,1\n"))
