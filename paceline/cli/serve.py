"""`paceline serve`: one model, or a cluster that does what was planned, behind OpenAI's HTTP protocol."""

import asyncio
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.terminal import messages, progress_bars
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.config import SpeculativeConfig
    from paceline.serving.job import Backend


def serve(
    model: Annotated[
        str | None, typer.Argument(help="Built-in name, GGUF file, safetensors folder or hub id; not with --cluster.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", help="Start the groups of this plan (docs/cluster.md).")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen at.")] = 8000,
    served_model_name: Annotated[
        str | None, typer.Option("--served-model-name", help="What requests call the model; its name by default.")
    ] = None,
    weights: Annotated[
        list[str] | None, typer.Option("--weights", help="NAME=MODEL: weights of a plan's model; repeatable.")
    ] = None,
    num_cpus: Annotated[int | None, typer.Option("--num-cpus", help="CPUs that all groups share; default all.")] = None,
    heartbeat: Annotated[float, typer.Option("--heartbeat", help="Seconds between checks of a group.")] = 1.0,
    max_restarts: Annotated[int, typer.Option("--max-restarts", help="Restarts of a group in a row.")] = 3,
    events: Annotated[
        Path | None, typer.Option("--events", help="Write what happens to the cluster here, not to standard error.")
    ] = None,
    draft: o.Draft = o.DEFAULT_DRAFT,
    draft_model: o.DraftModel = None,
    num_draft_tokens: o.NumDraft = None,
    rule: o.Rule = o.DEFAULT_RULE,
    policy: o.Policy = "auto",
    draft_option: o.DraftOption = None,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    executor: o.ExecutorName = "auto",
    tensor_parallel_size: o.TensorParallel = 1,
    pipeline_parallel_size: o.PipelineParallel = 1,
) -> None:
    """Answer OpenAI's completions and chat completions over HTTP.

    With --cluster, requests go to the group with the shortest queue among those that hold their model; those that
    would miss their deadline are refused at once; a group that dies is started again, and none of its requests is lost.

    Examples:

        paceline serve

        paceline serve smollm2-135m --draft suffix --port 8080

        paceline place --case case.yaml --output plan.json && paceline serve --cluster plan.json

        paceline serve --cluster plan.json --weights chat=smollm2-135m --weights code=code.gguf --num-cpus 2

        curl localhost:8000/v1/models
    """
    speculative = o.speculative_config(draft, draft_model, num_draft_tokens, rule, policy, draft_option)
    _need_extras()
    if cluster is not None:
        if model is not None:
            raise InvalidParameter("model", f"{model!r} is given beside --cluster", "the plan names its models")
        if threads is not None or tensor_parallel_size * pipeline_parallel_size > 1:
            problem = "threads or parallel sizes are given beside --cluster"
            raise InvalidParameter("cluster", problem, "leave them out: the plan and --num-cpus decide them")
        supervision = {"heartbeat": heartbeat, "max_restarts": max_restarts}
        options = {"speculative": speculative, "dtype": dtype, "executor": executor}
        _serve_cluster(cluster, _paths(weights), num_cpus, supervision, events, options, host, port)
        return
    engine = {
        "dtype": dtype, "num_threads": threads, "executor": executor, "tensor_parallel_size": tensor_parallel_size,
        "pipeline_parallel_size": pipeline_parallel_size,
    }  # fmt: skip
    name = model or o.DEFAULT_MODEL
    _serve_one(name, served_model_name or name, speculative, engine, host, port)


def _serve_one(
    path: str, name: str, speculative: "SpeculativeConfig | None", engine: dict[str, Any], host: str, port: int
) -> None:
    from paceline.serving.local import LocalBackend
    from paceline.serving.model_spec import ModelSpec
    from paceline.serving.worker import open_model

    with progress_bars() as progress:
        opener = partial(open_model, speculative=speculative, progress=progress, **engine)
        backend = LocalBackend([ModelSpec(name, path)], opener)
    asyncio.run(_listen(backend, host, port))


def _serve_cluster(
    path: Path, weights: dict[str, str], num_cpus: int | None, supervision: dict[str, Any], events: Path | None,
    options: dict[str, Any], host: str, port: int,
) -> None:  # fmt: skip
    from paceline.serving.cluster.dispatcher import Dispatcher
    from paceline.serving.cluster.group import Supervision
    from paceline.serving.cluster.plan import read_plan
    from paceline.serving.cluster.preflight import check_loadable

    plan = read_plan(path).with_paths(weights)
    with progress_bars() as progress:
        check_loadable(plan, progress)
    from paceline.serving.cluster.ray_groups import start_groups, stop_ray

    async def run() -> None:
        with _event_log(events) as log:
            dispatcher = Dispatcher(plan, groups, Supervision(**supervision), log)
            await dispatcher.start()
            await _listen(dispatcher, host, port)

    messages.print(f"starting {len(plan.placement.groups)} groups with {len(plan.held)} models")
    groups = start_groups(plan, num_cpus, **options)
    try:
        asyncio.run(run())
    finally:
        stop_ray()


async def _listen(backend: "Backend", host: str, port: int) -> None:
    """Serve until interrupted; then answer what was accepted."""
    import uvicorn

    from paceline.serving.app import build_app

    config = uvicorn.Config(build_app(backend), host, port, log_level="warning", timeout_graceful_shutdown=30)
    messages.print(f"listening at http://{host}:{port}/v1 with {', '.join(backend.models)}; end with Ctrl-C")
    await uvicorn.Server(config).serve()


@contextmanager
def _event_log(path: Path | None):
    from paceline.serving.cluster.events import EventLog

    if path is None:
        yield EventLog(messages.file)
    else:
        with path.open("a", encoding="utf-8") as stream:
            yield EventLog(stream)


def _paths(weights: list[str] | None) -> dict[str, str]:
    paths = {}
    for text in weights or []:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise InvalidParameter("weights", f"{text!r} is not NAME=MODEL", "write e.g. chat=smollm2-135m")
        paths[name] = path
    return paths


def _need_extras() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        problem = f"serving needs {error.name}, which is not installed"
        raise InvalidParameter("serve", problem, "pip install 'paceline[serve]'") from None
