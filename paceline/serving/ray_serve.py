"""A Ray Serve application: every replica is the server of `http/app.py` on an engine of its own. Needs ``ray[serve]``.

    serve run paceline.serving.ray_serve:application model=smollm2-135m

or in a Serve config file ``import_path: paceline.serving.ray_serve:application`` with ``args`` as `Arguments` has them.
Ray Serve counts replicas, restarts them and spreads requests; deadlines, and a planner's groups, are a cluster's
(`cluster/`), which knows what each request costs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paceline.config import EngineConfig, SpeculativeConfig, from_mapping
from paceline.errors import EngineDead, InvalidParameter
from paceline.extras import install
from paceline.serving.http.app import build_app
from paceline.serving.models.local import LocalBackend
from paceline.serving.models.model_spec import ModelSpec
from paceline.serving.models.worker import open_model
from paceline.serving.settings import Settings

try:
    from ray import serve
except ModuleNotFoundError:
    remedy = f"pip install 'ray[serve]', then {install('serve')}"
    raise InvalidParameter("ray_serve", "Ray Serve is not installed", remedy) from None


@dataclass(frozen=True)
class Arguments:
    """Of the application.

    Attributes:
        model: built-in name, GGUF file, safetensors folder or hub id; found by the same name on every node.
        name: what requests call it; `model` when left out.
        engine: options of `EngineConfig`.
        speculative: a drafter's name, or options of `SpeculativeConfig`; None for plain decoding.
        settings: options of `Settings`; by default no playground, and as many requests at once as there are seats.
        deployment: options of ``serve.deployment``: num_replicas, autoscaling_config, ray_actor_options, ...

    Raises:
        InvalidParameter: an option that nobody knows, or a value outside its range.
    """

    model: str
    name: str = ""
    engine: Mapping[str, Any] = field(default_factory=dict)
    speculative: str | Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    deployment: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _, _ = self.engine_config, self.limits
        SpeculativeConfig.of(self.speculative)

    @property
    def engine_config(self) -> EngineConfig:
        """The engine's, with its defaults."""
        return from_mapping(EngineConfig, self.engine)

    @property
    def limits(self) -> Settings:
        """The server's, with their defaults."""
        own = {"max_running": self.engine_config.max_num_seqs, "page": False}
        return from_mapping(Settings, own | dict(self.settings))

    @property
    def options(self) -> dict[str, Any]:
        """The deployment's: a replica takes what it can run and queue, and the processors of its threads."""
        processors = self.engine_config.num_threads or 1
        gpus = {"num_gpus": 1} if self.engine_config.device.startswith("cuda") else {}
        own = {
            "max_ongoing_requests": self.limits.max_running + self.limits.max_queue,
            "ray_actor_options": {"num_cpus": processors} | gpus,
        }
        return own | dict(self.deployment)


@serve.ingress()
class Replica:
    """One engine and its server."""

    def __init__(self, arguments: Arguments) -> None:
        self._limits = arguments.limits
        speculative = SpeculativeConfig.of(arguments.speculative)
        spec = ModelSpec(arguments.name or arguments.model, arguments.model)
        engine = {"num_threads": 1} | dict(arguments.engine)
        self._backend = LocalBackend([spec], partial(open_model, speculative=speculative, **engine))

    def __serve_build_asgi_app__(self) -> Any:
        """What Ray Serve asks for requests."""
        return build_app(self._backend, self._limits)

    def check_health(self) -> None:
        """Ray Serve makes a new replica when this raises."""
        health = self._backend.health()
        if health["status"] != "ok":
            raise EngineDead(health.get("reason", "the engine does not answer"))


def application(args: dict[str, Any]) -> Any:
    """The application that ``serve run`` and Serve's config files build.

    Args:
        args: fields of `Arguments`.

    Raises:
        InvalidParameter: see `Arguments`; or no model is named.
    """
    if not isinstance(args.get("model"), str):
        raise InvalidParameter("model", "is not named", "give e.g. model=smollm2-135m")
    arguments = from_mapping(Arguments, args)
    return serve.deployment(Replica, **arguments.options).bind(arguments)  # type: ignore[attr-defined]
