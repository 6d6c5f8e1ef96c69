"""`paceline serve`: one model, or a cluster that does what was planned, behind OpenAI's HTTP protocol."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.serve_audit import AuditBeside
from paceline.cli.terminal import messages, progress_bars
from paceline.errors import InvalidParameter
from paceline.serving.settings import Settings, check_exposure, is_loopback, local_names

if TYPE_CHECKING:
    from paceline.serving.job import Backend

_SETTINGS = Settings()


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Let a YAML file say what the command line does not."""
    if path is None:
        return None
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidParameter("config", f"{path} cannot be read ({error})", "give a YAML file of options") from None
    if not isinstance(values, dict):
        raise InvalidParameter("config", f"{path} holds no mapping", "write e.g. port: 8080")
    named = {str(key).replace("-", "_"): value for key, value in values.items()}
    known = {parameter.name for parameter in context.command.params}
    for name in named:
        if name not in known:
            raise InvalidParameter("config", f"{name!r} in {path} is no option", "see paceline serve --help")
    context.default_map = {**(context.default_map or {}), **named}
    return path


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
    also: Annotated[
        list[str] | None, typer.Option("--also", help="NAME=MODEL: a further model of this server; repeatable.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="YAML file of these options.", is_eager=True, callback=_read_config),
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
    policy_option: o.PolicyOption = None,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    executor: o.ExecutorName = "auto",
    device: o.Device = "cpu",
    tensor_parallel_size: o.TensorParallel = 1,
    pipeline_parallel_size: o.PipelineParallel = 1,
    max_model_len: o.MaxModelLen = None,
    max_num_seqs: o.MaxNumSeqs = o.DEFAULT_MAX_NUM_SEQS,
    max_num_batched_tokens: o.MaxBatchedTokens = None,
    scheduler: o.SchedulerPolicy = o.DEFAULT_SCHEDULER,
    kv_cache_memory_bytes: o.CacheBytes = None,
    kv_cache_dtype: o.CacheDtype = "auto",
    max_queue: o.MaxQueue = _SETTINGS.max_queue,
    max_body_bytes: o.MaxBody = _SETTINGS.max_body_bytes,
    request_timeout: o.RequestTimeout = None,
    ping_seconds: o.PingSeconds = _SETTINGS.ping_seconds,
    drain_seconds: o.DrainSeconds = _SETTINGS.drain_seconds,
    api_key: o.ApiKey = None,
    api_key_file: o.ApiKeyFile = None,
    insecure: o.Insecure = False,
    allowed_host: o.AllowedHost = None,
    allowed_origin: o.AllowedOrigin = None,
    metrics_prefix: o.MetricsPrefix = _SETTINGS.metrics_prefix,
    per_request_spec_decode_metrics: o.SpecMetrics = False,
    shared_cache: o.SharedCache = False,
    page: o.Page = True,
    request_log: o.RequestLogFile = None,
    otel: o.Otel = False,
    audit_rate: Annotated[
        float | None, typer.Option("--audit-rate", help="Share of sampled answers to test in quiet moments, e.g. 0.01.")
    ] = None,
    audit_ledger: Annotated[
        Path | None, typer.Option("--audit-ledger", help="Add the evidence of --audit-rate to this file.")
    ] = None,
) -> None:
    """Answer OpenAI's completions and chat completions over HTTP.

    With --cluster, requests go to the group with the shortest queue among those that hold their model; those that
    would miss their deadline are refused at once; a group that dies is started again, and none of its requests is lost.
    Every option can be given in a YAML file (--config) or as an environment variable: PACELINE_PORT for --port.

    Examples:

        paceline serve

        paceline serve smollm2-135m --draft suffix --port 8080

        paceline serve --host 0.0.0.0 --api-key-file keys.txt --max-queue 32 --request-log -

        paceline serve smollm2-135m --also code=code.gguf

        paceline serve --config serve.yaml

        paceline place --case case.yaml --output plan.json && paceline serve --cluster plan.json

        paceline serve --cluster plan.json --weights chat=smollm2-135m --weights code=code.gguf --num-cpus 2

        curl localhost:8000/v1/models
    """
    speculative = o.speculative_config(draft, draft_model, num_draft_tokens, rule, policy, draft_option, policy_option)
    need_extras()
    settings = _settings(
        host, port, (*(api_key or ()), *_keys_of(api_key_file)), insecure, allowed_host, max_queue=max_queue,
        max_running=max_num_seqs, max_body_bytes=max_body_bytes, request_timeout=request_timeout,
        ping_seconds=ping_seconds, drain_seconds=drain_seconds, allowed_origins=tuple(allowed_origin or ()),
        metrics_prefix=metrics_prefix, spec_decode_metrics=per_request_spec_decode_metrics, page=page,
        shared_cache=shared_cache,
    )  # fmt: skip
    if cluster is not None:
        if model is not None or also:
            raise InvalidParameter("model", f"{model or also} is given beside --cluster", "the plan names its models")
        if audit_rate is not None:
            raise InvalidParameter("audit_rate", "is given beside --cluster", "audit one engine, without --cluster")
        if threads is not None or tensor_parallel_size * pipeline_parallel_size > 1:
            problem = "threads or parallel sizes are given beside --cluster"
            raise InvalidParameter("cluster", problem, "leave them out: the plan and --num-cpus decide them")
        supervision = {"heartbeat": heartbeat, "max_restarts": max_restarts}
        options = {"speculative": speculative, "dtype": dtype, "executor": executor}
        listen = partial(_listen, settings=settings, host=host, port=port, log=request_log, otel=otel)
        _serve_cluster(cluster, _named("weights", weights), num_cpus, supervision, events, options, listen)
        return
    engine = {
        "dtype": dtype, "num_threads": threads, "executor": executor, "device": device,
        "tensor_parallel_size": tensor_parallel_size, "pipeline_parallel_size": pipeline_parallel_size,
        "max_model_len": max_model_len, "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens, "scheduler": scheduler,
        "kv_cache_memory_bytes": kv_cache_memory_bytes, "kv_cache_dtype": kv_cache_dtype,
    }  # fmt: skip
    name = model or o.DEFAULT_MODEL
    models = {served_model_name or name: name, **_named("also", also)}
    listen = partial(_listen, settings=settings, host=host, port=port, log=request_log, otel=otel)
    audit = None if audit_rate is None else AuditBeside(audit_rate, audit_ledger)
    _serve_here(models, {"speculative": speculative, **engine}, host, port, listen, audit)


def _keys_of(path: Path | None) -> tuple[str, ...]:
    from paceline.serving.settings import read_keys

    return () if path is None else read_keys(path)


def _settings(
    host: str, port: int, keys: tuple[str, ...], insecure: bool, hosts: list[str] | None, **more: Any
) -> Settings:
    """Raises InvalidParameter for what should not listen."""
    check_exposure(host, keys, insecure)
    allowed = tuple(hosts or ()) or (local_names(host, port) if is_loopback(host) else ())
    return Settings(api_keys=keys, allowed_hosts=allowed, **more)


def _serve_here(
    models: dict[str, str], options: dict[str, Any], host: str, port: int,
    listen: Callable[..., Coroutine[Any, Any, None]], audit: AuditBeside | None = None,
) -> None:  # fmt: skip
    """Models of this process, each with an engine of its own; `models` is name to path."""
    from paceline.serving.local import LocalBackend
    from paceline.serving.model_spec import ModelSpec
    from paceline.serving.run import bind
    from paceline.serving.worker import open_model

    bound = bind(host, port)
    with progress_bars() as progress:
        opener = partial(open_model, progress=progress, **options)
        watched = opener if audit is None else audit.opener(opener)
        specs = [ModelSpec(name, path) for name, path in models.items()]
        backend = LocalBackend(specs, watched, bytes if audit is None else audit.metrics)
    listening = listen(backend, bound=bound)
    asyncio.run(listening if audit is None else audit.beside(listening))


def _serve_cluster(
    path: Path, weights: dict[str, str], num_cpus: int | None, supervision: dict[str, Any], events: Path | None,
    options: dict[str, Any], listen: Callable[["Backend"], Awaitable[None]],
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
            await listen(dispatcher)

    messages.print(f"starting {len(plan.placement.groups)} groups with {len(plan.held)} models")
    groups = start_groups(plan, num_cpus, **options)
    try:
        asyncio.run(run())
    finally:
        stop_ray()


async def _listen(
    backend: "Backend", *, settings: Settings, host: str, port: int, log: Path | None, otel: bool = False,
    bound: socket.socket | None = None,
) -> None:  # fmt: skip
    """Serve until told to stop; then answer what was accepted."""
    from paceline.serving.app import build_app
    from paceline.serving.run import Server, bind, settle_memory

    bound = bound or bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    where = f"http://{shown}:{bound.getsockname()[1]}"

    def say() -> None:
        messages.print(f"listening at {where}/v1 with {', '.join(backend.models)}; end with Ctrl-C", soft_wrap=True)

    with _request_log(log) as stream, _telemetry(otel) as telemetry:
        app = build_app(backend, settings, stream, telemetry)
        settle_memory()
        await Server(app, app.front.gate, settings.drain_seconds, say).serve(sockets=[bound])


@contextmanager
def _telemetry(wanted: bool):
    """What wraps an application so that OpenTelemetry is told; what is left to send is sent at the end."""
    if not wanted:
        yield None
        return
    from paceline.serving.telemetry import Telemetry, to_collector

    tracers, meters = to_collector()
    yield partial(Telemetry, tracer_provider=tracers, meter_provider=meters)
    tracers.shutdown()
    meters.shutdown()


@contextmanager
def _request_log(path: Path | None):
    """Where lines of requests go: nowhere, standard error for -, or a file."""
    if path is None or str(path) == "-":
        yield None if path is None else messages.file
    else:
        with path.open("a", encoding="utf-8") as stream:
            yield stream


@contextmanager
def _event_log(path: Path | None):
    from paceline.serving.cluster.events import EventLog

    if path is None:
        yield EventLog(messages.file)
    else:
        with path.open("a", encoding="utf-8") as stream:
            yield EventLog(stream)


def _named(option: str, given: list[str] | None) -> dict[str, str]:
    """NAME=MODEL, as often as `option` was given, as a mapping."""
    paths = {}
    for text in given or []:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise InvalidParameter(option, f"{text!r} is not NAME=MODEL", "write e.g. chat=smollm2-135m")
        paths[name] = path
    return paths


def need_extras() -> None:
    """Raise InvalidParameter, with what to install, where the extra `serve` is missing."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        problem = f"serving needs {error.name}, which is not installed"
        raise InvalidParameter("serve", problem, "pip install 'paceline[serve]'") from None
