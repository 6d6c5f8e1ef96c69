"""The Ray Serve application: its arguments are read strictly, and a replica answers as the server does."""

import pytest

pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve", reason="needs ray[serve]", exc_type=ImportError)

import httpx  # noqa: E402

from paceline import LLM, SamplingParams  # noqa: E402
from paceline.errors import EngineDead, InvalidParameter  # noqa: E402
from paceline.serving.cluster.ray_session import start_ray, stop_ray  # noqa: E402
from paceline.serving.ray_serve import Arguments, Replica, application  # noqa: E402

MODEL = "smollm2-135m"


@pytest.mark.parametrize(
    ("field", "args"),
    [
        ("model", {}),
        ("modle", {"model": MODEL, "modle": 1}),
        ("dtpye", {"model": MODEL, "engine": {"dtpye": "int8"}}),
        ("max_running", {"model": MODEL, "settings": {"max_running": 0}}),
        ("num_threads", {"model": MODEL, "engine": {"num_threads": 0}}),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(field, args):
    with pytest.raises(InvalidParameter) as found:
        application(args)
    assert found.value.field == field


def test_a_replica_takes_what_it_can_run_and_queue_and_reserves_what_it_uses():
    plain = Arguments(MODEL, engine={"max_num_seqs": 8}, settings={"max_queue": 4})
    assert plain.options == {"max_ongoing_requests": 12, "ray_actor_options": {"num_cpus": 1}}
    other = Arguments(MODEL, engine={"device": "cuda", "num_threads": 3}, deployment={"num_replicas": 2})
    assert other.options["ray_actor_options"] == {"num_cpus": 3, "num_gpus": 1}
    assert other.options["num_replicas"] == 2


def test_a_replica_whose_engine_is_down_is_replaced():
    class Down:
        def health(self):
            return {"status": "down", "reason": "out of memory"}

    replica = Replica.__mro__[1].__new__(Replica.__mro__[1])
    replica._backend = Down()
    with pytest.raises(EngineDead, match="out of memory"):
        replica.check_health()


@pytest.mark.weights
def test_ray_serve_answers_what_the_library_says():
    start_ray(2)
    try:
        args = {"model": MODEL, "name": "small", "engine": {"dtype": "int8"}}
        serve.start(http_options={"host": "127.0.0.1", "port": 18731})
        serve.run(application(args), route_prefix="/")
        body = {"model": "small", "prompt": "1, 2, 3,", "temperature": 0, "max_tokens": 8}
        answer = httpx.post("http://127.0.0.1:18731/v1/completions", json=body, timeout=60)
        unknown = httpx.post("http://127.0.0.1:18731/v1/completions", json=body | {"model": "x"}, timeout=60)
        with httpx.stream("POST", "http://127.0.0.1:18731/v1/completions", json=body | {"stream": True}) as stream:
            lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
    finally:
        serve.shutdown()
        stop_ray()
    params = SamplingParams(temperature=0, max_tokens=8)
    alone = LLM(MODEL, dtype="int8", num_threads=1, speculative=None).generate("1, 2, 3,", params)[0]
    assert answer.json()["choices"][0]["text"] == alone.outputs[0].text
    assert unknown.status_code == 404
    assert len(lines) > 3 and lines[-1] == "data: [DONE]"
