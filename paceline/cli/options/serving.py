"""The options of `paceline serve` in groups: how the model runs, who may ask and how, and the cluster of a plan."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.options import model as o
from paceline.cli.options.groups import Devices
from paceline.config import SpeculativeConfig
from paceline.errors import InvalidParameter
from paceline.serving.settings import Settings, check_exposure, check_host, is_loopback, local_names, read_keys

_SETTINGS = Settings()


@dataclass(frozen=True, slots=True)
class ServedOn(Devices):
    """How the model runs, and what it takes on at once."""

    max_model_len: o.MaxModelLen = None
    max_num_seqs: o.MaxNumSeqs = o.DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: o.MaxBatchedTokens = None
    scheduler: o.SchedulerPolicy = o.DEFAULT_SCHEDULER
    parse_special_tokens: o.ParseSpecial = True

    def engine(self) -> dict[str, Any]:
        """As `LLM` takes it."""
        own = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "scheduler", "parse_special_tokens")
        return Devices.engine(self) | {name: getattr(self, name) for name in own}


@dataclass(frozen=True, slots=True)
class Front:
    """Where the server listens, who may ask, and how long it waits."""

    host: Annotated[str, typer.Option("--host", help="Address to listen at; 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", help="Port to listen at.")] = 8000
    max_queue: o.MaxQueue = _SETTINGS.max_queue
    max_body_bytes: o.MaxBody = _SETTINGS.max_body_bytes
    request_timeout: o.RequestTimeout = None
    ping_seconds: o.PingSeconds = _SETTINGS.ping_seconds
    stream_interval: o.StreamInterval = _SETTINGS.stream_interval
    drain_seconds: o.DrainSeconds = _SETTINGS.drain_seconds
    api_key: o.ApiKey = None
    api_key_file: o.ApiKeyFile = None
    insecure: o.Insecure = False
    allowed_host: o.AllowedHost = None
    allowed_origin: o.AllowedOrigin = None
    metrics_prefix: o.MetricsPrefix = _SETTINGS.metrics_prefix
    per_request_spec_decode_metrics: o.SpecMetrics = False
    shared_cache: o.SharedCache = False
    page: o.Page = True
    request_log: o.RequestLogFile = None
    otel: o.Otel = False

    def settings(self, max_running: int) -> Settings:
        """What the server allows. Raises InvalidParameter for what should not listen."""
        keys = (*(self.api_key or ()), *(read_keys(self.api_key_file) if self.api_key_file else ()))
        check_host(self.host)
        check_exposure(self.host, keys, self.insecure)
        local = local_names(self.host) if is_loopback(self.host) else ()
        return Settings(
            api_keys=keys, allowed_hosts=tuple(self.allowed_host or ()) or local, max_queue=self.max_queue,
            max_running=max_running, max_body_bytes=self.max_body_bytes, request_timeout=self.request_timeout,
            ping_seconds=self.ping_seconds, stream_interval=self.stream_interval, drain_seconds=self.drain_seconds,
            allowed_origins=tuple(self.allowed_origin or ()), metrics_prefix=self.metrics_prefix,
            spec_decode_metrics=self.per_request_spec_decode_metrics, shared_cache=self.shared_cache, page=self.page,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A plan that is started in place of one model."""

    cluster: Annotated[
        Path | None, typer.Option("--cluster", help="Start the groups of this plan (docs/cluster.md).")
    ] = None
    weights: Annotated[
        list[str] | None, typer.Option("--weights", help="NAME=MODEL: weights of a plan's model; repeatable.")
    ] = None
    num_cpus: Annotated[int | None, typer.Option("--num-cpus", help="CPUs that all groups share; default all.")] = None
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", help="Join this Ray (host:port, or auto) instead of starting one.")
    ] = None
    heartbeat: Annotated[float, typer.Option("--heartbeat", help="Seconds between checks of a group.")] = 1.0
    max_restarts: Annotated[int, typer.Option("--max-restarts", help="Restarts of a group in a row.")] = 3
    events: Annotated[
        Path | None, typer.Option("--events", help="Write what happens to the cluster here, not to standard error.")
    ] = None

    def check_alone(
        self, model: str | list[str] | None, name: str | None, devices: Devices, audit_rate: float | None
    ) -> None:
        """Raise InvalidParameter for what a plan decides, or cannot have. `name` is that of ``--served-model-name``."""
        if model:
            raise InvalidParameter("model", f"{model} is given beside --cluster", "the plan names its models")
        if name is not None:
            raise InvalidParameter("served_model_name", "is given beside --cluster", "name models in the plan")
        if audit_rate is not None:
            raise InvalidParameter("audit_rate", "is given beside --cluster", "audit one engine, without --cluster")
        if devices.threads is not None or devices.tensor_parallel_size * devices.pipeline_parallel_size > 1:
            problem = "threads or parallel sizes are given beside --cluster"
            raise InvalidParameter("cluster", problem, "leave them out: the plan and --num-cpus decide them")

    def check_absent(self) -> None:
        """Raise InvalidParameter for an option of a cluster without --cluster."""
        for field in ("weights", "num_cpus", "ray_address", "events"):
            if getattr(self, field) is not None:
                raise InvalidParameter(
                    field, "is given without --cluster", "name the plan with --cluster, or leave it out"
                )

    def paths(self) -> dict[str, str]:
        """`weights` as a mapping from name to path."""
        return named_models("weights", self.weights)


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The audit beside the server."""

    audit_rate: Annotated[
        float | None, typer.Option("--audit-rate", help="Share of sampled answers to test in quiet moments, e.g. 0.01.")
    ] = None
    audit_ledger: Annotated[
        Path | None, typer.Option("--audit-ledger", help="Add the evidence of --audit-rate to this file.")
    ] = None

    def check(self) -> None:
        """Raise InvalidParameter for a ledger that nothing is added to."""
        if self.audit_ledger is not None and self.audit_rate is None:
            raise InvalidParameter("audit_ledger", "is given without --audit-rate", "add e.g. --audit-rate 0.01")


@dataclass(frozen=True, slots=True)
class KeepingOptions:
    """Texts kept to learn from."""

    keep_served: Annotated[
        Path | None,
        typer.Option("--keep-served", help="Keep served texts with hidden states here, to train a head on. PRIVATE."),
    ] = None
    keep_tokens: Annotated[
        int | None, typer.Option("--keep-tokens", min=1, help="With --keep-served: the latest so many tokens [100000].")
    ] = None

    def around(self, spec: SpeculativeConfig | None) -> SpeculativeConfig | None:
        """`spec` with its drafter recorded, where that was asked for.

        Raises:
            InvalidParameter: there is no drafter, or a number of tokens and no folder.
        """
        if self.keep_served is None:
            if self.keep_tokens is not None:
                raise InvalidParameter("keep_tokens", "is given without --keep-served", "name a folder with that")
            return spec
        from paceline.training.online.recorded import MAX_TOKENS, recorded

        return recorded(spec, self.keep_served, self.keep_tokens or MAX_TOKENS)


def named_models(option: str, given: list[str] | None) -> dict[str, str]:
    """NAME=MODEL, as often as `option` was given, as a mapping. Raises InvalidParameter for anything else."""
    paths = {}
    for text in given or []:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise InvalidParameter(option, f"{text!r} is not NAME=MODEL", "write e.g. chat=smollm2-135m")
        if name in paths:
            raise InvalidParameter(option, f"{name!r} is there twice", "give every model its own name")
        paths[name] = path
    return paths
