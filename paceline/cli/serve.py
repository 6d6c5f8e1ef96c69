"""`paceline serve`: one model, or a cluster that does what was planned, behind OpenAI's HTTP protocol."""

import json
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import model as o
from paceline.cli.options.groups import Drafting, grouped
from paceline.cli.options.model_argument import NAME as MODEL_ARGUMENT
from paceline.cli.options.serving import AuditOptions, ClusterOptions, Front, KeepingOptions, ServedOn, named_models
from paceline.cli.serve_audit import AuditBeside
from paceline.cli.terminal.streams import messages, progress_bars
from paceline.config import EngineConfig, SpeculativeConfig
from paceline.disk import check_file
from paceline.errors import InvalidParameter
from paceline.extras import install
from paceline.serving.settings import Settings

if TYPE_CHECKING:
    from paceline.serving.models.job import Backend


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take options that are not on the command line from a YAML file."""
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
    known = {parameter.name: parameter for parameter in context.command.params if parameter.name != MODEL_ARGUMENT}
    for name, value in named.items():
        if name not in known:
            raise InvalidParameter("config", f"{name!r} in {path} is no option", "see paceline serve --help")
        if isinstance(value, str) and getattr(known[name], "multiple", False):
            named[name] = [value]  # a repeatable option that is given once
        elif name == "speculative_config" and isinstance(value, dict):
            named[name] = json.dumps(value)
    context.default_map = {**(context.default_map or {}), **named}
    return path


@grouped
def serve(
    model: o.ModelOrPlan = None,
    *,
    plan: ClusterOptions,
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
    chat_template: o.ChatTemplate = None,
    drafting: Drafting,
    devices: ServedOn,
    front: Front,
    auditing: AuditOptions,
    keeping: KeepingOptions,
) -> None:
    """Answer OpenAI's completions and chat completions over HTTP.

    With --cluster, requests go to the group with the shortest queue among those that hold their model; those that
    would miss their deadline are refused at once; a group that dies is started again, and none of its requests is lost.
    Every option can be given in a YAML file (--config) or as an environment variable: PACELINE_PORT for --port.

    Examples:

        paceline serve

        paceline serve smollm2-135m --draft suffix --port 8080

        paceline serve --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'

        paceline serve --host 0.0.0.0 --api-key-file keys.txt --max-queue 32 --request-log -

        paceline serve smollm2-135m --also code=code.gguf

        paceline serve smollm2-135m --keep-served served/

        paceline serve --config serve.yaml

        paceline place --case case.yaml --output plan.json && paceline serve --cluster plan.json

        paceline serve --cluster plan.json --weights chat=smollm2-135m --weights code=code.gguf --num-cpus 2

        curl localhost:8000/v1/models
    """
    speculative = keeping.around(drafting.config())
    EngineConfig(**devices.engine())  # what no engine can have is told of by the option's name, before anything starts
    need_extras()
    if plan.cluster is None:
        plan.check_absent()
    auditing.check()
    settings = front.settings(devices.max_num_seqs)
    for field, log in (("request_log", front.request_log), ("events", plan.events)):
        if log is not None and str(log) != "-":
            check_file(field, log)
    rules = () if speculative is None else (speculative.rule,)
    where = {"host": front.host, "port": front.port, "log": front.request_log, "otel": front.otel, "rules": rules}
    listen = partial(_listen, settings=settings, **where)
    if keeping.keep_served is not None and (plan.cluster is not None or also):
        raise InvalidParameter("keep_served", "is for one model", "leave --cluster and --also out")
    if plan.cluster is not None:
        plan.check_alone(model or also, served_model_name, devices, auditing.audit_rate)
        if chat_template is not None:
            remedy = "write it under engine of a model in the plan"
            raise InvalidParameter("chat_template", "is given beside --cluster", remedy)
        _serve_cluster(plan.cluster, plan, devices.engine(), speculative, settings, front, listen)
        return
    rate = auditing.audit_rate
    audit = None if rate is None else AuditBeside(rate, auditing.audit_ledger)
    name = model or o.DEFAULT_MODEL
    first, further = served_model_name or name, named_models("also", also)
    if first in further:
        raise InvalidParameter("also", f"{first!r} is the name of the first model", "give every model its own name")
    _serve_here(
        {first: name, **further}, {"speculative": speculative, **devices.engine()}, front, listen, audit, chat_template
    )


def _serve_here(
    models: dict[str, str], options: dict[str, Any], front: Front,
    listen: Callable[..., Coroutine[Any, Any, None]], audit: AuditBeside | None, chat_template: str | None,
) -> None:  # fmt: skip
    """Models of this process, each with an engine of its own; `models` is name to path, the first of them with
    `chat_template` in place of its own."""
    from paceline.serving.http.run import bind, run
    from paceline.serving.models.local import LocalBackend
    from paceline.serving.models.model_spec import ModelSpec
    from paceline.serving.models.worker import open_model

    bound = bind(front.host, front.port)
    with progress_bars() as progress:
        opener = partial(open_model, progress=progress, **options)
        watched = opener if audit is None else audit.opener(opener)
        own = [{"chat_template": chat_template}, *({} for _ in range(len(models) - 1))]
        specs = [ModelSpec(*named, engine=engine) for named, engine in zip(models.items(), own, strict=True)]
        backend = LocalBackend(specs, watched, bytes if audit is None else audit.metrics)
    _say_dtypes(backend)
    listening = listen(backend, bound=bound)
    run(listening if audit is None else audit.beside(listening))


def _say_dtypes(backend: "Backend") -> None:
    """Print in which dtype each model runs, and why where ``auto`` chose it."""
    for name in backend.models:
        told = backend.describe(name)
        why = f": {told['dtype_reason']}" if told.get("dtype_reason") else ""
        messages.print(f"{name} runs in dtype {told['dtype']}{why}", style="dim", soft_wrap=True, markup=False)


def _serve_cluster(
    path: Path, wanted: ClusterOptions, engine: dict[str, Any], speculative: SpeculativeConfig | None,
    settings: Settings, front: Front, listen: Callable[..., Awaitable[None]],
) -> None:  # fmt: skip
    from paceline.drafters.registry import check_drafter
    from paceline.serving.cluster.dispatcher import Dispatcher
    from paceline.serving.cluster.group import Supervision
    from paceline.serving.cluster.plan import read_plan
    from paceline.serving.cluster.preflight import check_loadable
    from paceline.serving.models.model_spec import FROM_THE_PLAN

    check_drafter(speculative)
    own = {name: value for name, value in engine.items() if name not in FROM_THE_PLAN}
    plan = read_plan(path).with_paths(wanted.paths()).with_engine(own)
    supervision = Supervision(heartbeat=wanted.heartbeat, max_restarts=wanted.max_restarts)
    with progress_bars() as progress:
        check_loadable(plan, progress)
    from paceline.serving.cluster.ray_groups import start_groups
    from paceline.serving.cluster.ray_session import stop_ray
    from paceline.serving.http.run import bind, run

    bound = bind(front.host, front.port)
    drafting = [speculative if own is None else SpeculativeConfig.of(own) for own in (m.speculative for m in plan.held)]

    async def serve_groups() -> None:
        with _event_log(wanted.events) as log:
            dispatcher = Dispatcher(plan, groups, supervision, log)
            await dispatcher.start()
            seats = replace(settings, max_running=plan.num_seats)
            await listen(dispatcher, settings=seats, bound=bound, rules=[each.rule for each in drafting if each])

    for spec in plan.models:
        if spec not in plan.held:
            messages.print(f"{spec.name}: no group of the plan holds it, so it is not served", soft_wrap=True)
    messages.print(f"starting {len(plan.placement.groups)} groups with {len(plan.held)} models")
    try:
        groups = start_groups(plan, wanted.num_cpus, address=wanted.ray_address, speculative=speculative)
        run(serve_groups())
    finally:
        stop_ray()


async def _listen(
    backend: "Backend", *, settings: Settings, host: str, port: int, log: Path | None, otel: bool = False,
    bound: socket.socket | None = None, rules: Sequence[str] = (),
) -> None:  # fmt: skip
    """Serve until told to stop; then answer what was accepted. A lossy one of `rules`, which verify drafts, is told."""
    from paceline.sampling import rule_called
    from paceline.serving.http.app import build_app
    from paceline.serving.http.run import Server, bind, listen, settle_memory

    bound = bound or bind(host, port)
    listen(bound)
    shown = f"[{host}]" if ":" in host else host
    where = f"http://{shown}:{bound.getsockname()[1]}"

    def say() -> None:
        messages.print(f"listening at {where}/v1 with {', '.join(backend.models)}; end with Ctrl-C", soft_wrap=True)
        for rule in sorted({each for each in rules if rule_called(each).is_lossy}):
            meaning = "answers need not follow the model's distribution (docs/exactness.md)"
            messages.print(f"drafts are verified by the lossy rule {rule!r}: {meaning}", soft_wrap=True)

    with _request_log(log) as stream, _telemetry(otel) as telemetry:
        app = build_app(backend, settings, stream, telemetry)
        settle_memory()
        await Server(app, app.front.gate, settings.drain_seconds, say).serve(sockets=[bound])


@contextmanager
def _telemetry(wanted: bool):
    """Yield a wrapper that reports an application to OpenTelemetry, or None; flushes the rest at the end."""
    if not wanted:
        yield None
        return
    from paceline.serving.http.telemetry import Telemetry, to_collector

    tracers, meters = to_collector()
    yield partial(Telemetry, tracer_provider=tracers, meter_provider=meters)
    tracers.shutdown()
    meters.shutdown()


@contextmanager
def _request_log(path: Path | None):
    """Yield the stream of the request log: None, standard error for -, or a file."""
    if path is None or str(path) == "-":
        yield None if path is None else messages.file
    else:
        with path.open("a", encoding="utf-8") as stream:
            yield stream


@contextmanager
def _event_log(path: Path | None):
    from paceline.serving.cluster.events import EventLog

    if path is None or str(path) == "-":
        yield EventLog(messages.file)
    else:
        with path.open("a", encoding="utf-8") as stream:
            yield EventLog(stream)


def need_extras() -> None:
    """Raise InvalidParameter, with what to install, if the extra `serve` is missing."""
    try:
        import prometheus_client  # noqa: F401
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        problem = f"serving needs {error.name}, which is not installed"
        raise InvalidParameter("serve", problem, install("serve")) from None
