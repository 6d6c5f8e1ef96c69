"""Servers as arms: what is asked, what is told, and what is not made up."""

import time

import pytest

from paceline.errors import InvalidParameter
from paceline.evaluation.bench.arms import Cell
from paceline.evaluation.bench.own_arms import bases_of, url_arms
from paceline.evaluation.bench.server_arm import EndpointArm, answers_from_a_cache
from paceline.evaluation.endpoint import Server, complete, connect, counters
from paceline.types import SamplingParams
from tests.evaluation.bench.openai_server import Fake, saying, serving

CELL = Cell(0, ("one", "two"), "all", temperature=0.5, seed=3, max_tokens=9)


def words(body):
    return ["a ", "b ", body["messages"][0]["content"]]


def test_a_plain_server_tells_text_and_tokens_and_nothing_else():
    fake = Fake(words)
    with serving(fake) as url:
        server = connect(url + "/v1/")
        assert (server.model, server.dialect, server.has_metrics) == ("tiny", "openai", False)
        seconds, [one, two] = EndpointArm(server, "x", "plain").answer(CELL)
    assert (one.text, two.text, one.tokens) == ("a b one", "a b two", 3)
    assert (one.passes, one.drafted, one.token_ids) == (None, None, None)
    assert 0 < one.first_token_seconds <= one.seconds <= seconds
    assert {body["seed"] for body in fake.bodies} == {3, 4}
    assert all(body["temperature"] == 0.5 and body["max_tokens"] == 9 for body in fake.bodies)


def test_llama_server_tells_its_drafts():
    fake = Fake(words, "llamacpp", timings={"predicted_n": 3, "draft_n": 4, "draft_n_accepted": 1})
    with serving(fake) as url:
        server = connect(url)
        answer = complete(server, "hi", SamplingParams(temperature=0, max_tokens=4))
    assert server.dialect == "llama-server"
    assert (answer.drafted, answer.accepted, answer.passes) == (4, 1, 1)
    assert fake.bodies[0]["cache_prompt"] is False


def test_counters_of_vllm_are_read_before_and_after():
    text = iter([0, 0, 10])

    def metrics():
        count = next(text)
        return f'# HELP x\nvllm:spec_decode_num_draft_tokens_total{{model="m"}} {2 * count}.0\n' + (
            f'vllm:spec_decode_num_accepted_tokens_total{{model="m"}} {count / 5}\nvllm:other_total 7\n'
        )

    with serving(Fake(words, "vllm", {"/metrics": metrics})) as url:
        server = connect(url)
        _, [first, second] = EndpointArm(server, "x", "plain").answer(CELL)
    assert (first.drafted, first.accepted, second.drafted) == (20, 2, 0)
    assert first.passes + second.passes == 3 + 3 - 2 - 2


def test_dialects_by_their_pages():
    for name, path in (("llama-server", "/props"), ("sglang", "/get_server_info"), ("vllm", "/version")):
        with serving(Fake(words, pages={path: "{}"})) as url:
            assert connect(url).dialect == name
            assert counters(url) is None


def test_servers_are_compared_with_their_own_plain_server():
    with serving(Fake(words)) as url, serving(Fake(words)) as plain:
        arms = url_arms([f"x={url}"], [f"x={plain}#other"])
        assert bases_of(arms) == (
            {"x plain": "x plain", "x plain (again)": "x plain", "x": "x plain"},
            {"x plain": "x plain (again)"},
        )
        assert arms[0].server.model == "other"
        assert url_arms([f"x={url}"], [], own=["plain"])[0].base == "plain"
        with pytest.raises(InvalidParameter, match=r"^url: 'x' has nothing"):
            url_arms([f"x={url}"], [])


def test_what_is_no_server_is_refused():
    with pytest.raises(InvalidParameter, match=r"^url"):
        connect("http://127.0.0.1:9")
    with pytest.raises(InvalidParameter, match=r"^url.*LABEL=URL"):
        url_arms(["http//x"], [])
    with pytest.raises(InvalidParameter, match=r"^plain_url"):
        url_arms([], ["x=http://127.0.0.1:9"])
    with pytest.raises(InvalidParameter, match=r"^plain_url.*LABEL=URL"):
        url_arms(["x=http://127.0.0.1:9"], ["x"])


def test_the_option_that_names_a_server_is_named_when_it_is_gone():
    with serving(Fake(words)) as url:
        with pytest.raises(InvalidParameter, match=r"^plain_url.*does not answer"):
            url_arms([f"x={url}"], ["x=http://127.0.0.1:9"])
        [plain, *_] = url_arms([f"x={url}"], [f"x={url}"])
    with pytest.raises(InvalidParameter, match=r"^plain_url.*cannot be asked"):
        plain.begin(0)


@pytest.mark.parametrize("listed", ["null", "3", '{"data": null}', '{"data": 3}', '{"data": [null]}', "{}"])
def test_lists_of_models_of_another_form_list_none(listed):
    with serving(Fake(words, pages={"/v1/models": listed})) as url:
        with pytest.raises(InvalidParameter, match="url"):
            connect(url)
        assert connect(url, "tiny").model == "tiny"


@pytest.mark.parametrize(
    "said",
    [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"HTTP/1.1 200 OK\r\n\r\n[]",
     b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n",
     b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 3\n\n"],
)  # fmt: skip
def test_what_is_no_answer_is_an_error_that_names_the_url(said):
    with saying(said) as url:
        assert counters(url) is None
        with pytest.raises(InvalidParameter, match=r"^url.*cannot be asked"):
            complete(Server(url, "tiny"), "hi", SamplingParams(temperature=0, max_tokens=4))


def test_a_server_that_answers_from_a_cache_is_found():
    asked = []

    def slow_at_first(body):
        time.sleep(0.0 if asked else 0.3)
        asked.append(body)
        return ["word "] * 12

    with serving(Fake(slow_at_first)) as url:
        assert answers_from_a_cache(connect(url)) is True
    with serving(Fake(lambda body: ["word "])) as url:
        assert answers_from_a_cache(connect(url)) is None
