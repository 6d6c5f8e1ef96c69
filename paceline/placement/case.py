"""`Case`: the input of a planner. Its files are read by `case_file.py`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from paceline.errors import InvalidParameter
from paceline.placement.cluster import Cluster
from paceline.placement.drafting import Drafting, check_drafts
from paceline.placement.model import NO_SLO, PlacedModel
from paceline.placement.profile import ModelProfile
from paceline.placement.rules import STAGE_OVERHEAD, ControllerRules
from paceline.placement.workload import Workload


@dataclass(frozen=True)
class Case:
    """A cluster, its models, their costs, the workload, and the rules by which requests are served.

    `drafts` holds the drafters of models, by index. Where these are placed must be chosen (`coplacement`) before a
    simulation.

    Raises:
        InvalidParameter: no models, equal names, a type without a profile, an arrival for an unknown model, or rules of
            one-pass requests for models that generate token by token.
    """

    name: str
    cluster: Cluster
    models: tuple[PlacedModel, ...]
    profiles: Mapping[str, ModelProfile]
    workload: Workload
    drafts: Mapping[int, Drafting] = field(default_factory=lambda: MappingProxyType({}))
    rules: ControllerRules = field(default_factory=ControllerRules)

    def __post_init__(self) -> None:
        if not self.models:
            raise InvalidParameter("models", "the list is empty", "name at least one model")
        names = Counter(model.name for model in self.models)
        for model in self.models:
            if names[model.name] > 1:
                raise InvalidParameter("models", f"two are called {model.name!r}", "give each its own name")
            if model.profile_type not in self.profiles:
                problem = f"no profile for type {model.profile_type!r} of model {model.name!r}"
                raise InvalidParameter("profiles", problem, f"profile it, or use one of {sorted(self.profiles)}")
        all_generated = all(self.profile_of(m).is_generated for m in range(len(self.models)))
        if self.is_generated and (self.drafts or not all_generated):
            problem = "some models have profiles with tokens, others have none or a draft block"
            raise InvalidParameter("profiles", problem, "give all of them tokens (with tokens_per_pass for drafts)")
        if self.is_generated:
            self._check_rules_of_tokens()
        for model in () if self.is_generated else self.models:
            for name in ("slo_first", "slo_token"):
                if getattr(model, name) < float("inf"):
                    problem = f"is given for model {model.name!r}, whose profile is of one pass"
                    raise InvalidParameter(name, problem, "leave it out, or give a profile with tokens")
        check_drafts(self.drafts, len(self.models), self.profiles)
        if self.workload.num_models > len(self.models):
            problem = f"model index {self.workload.num_models - 1}, there are {len(self.models)} models"
            raise InvalidParameter("arrivals", problem, f"use indices 0 to {len(self.models) - 1}")

    def _check_rules_of_tokens(self) -> None:
        """Raise InvalidParameter for rules that have no meaning where requests share passes."""
        given = {"stage_overhead": self.rules.stage_overhead != STAGE_OVERHEAD, "batch_sizes": self.rules.batch_sizes}
        for name in (name for name, value in given.items() if value):
            problem = "is given, but the profiles have tokens"
            raise InvalidParameter(name, problem, "leave it out: passes and batches are timed in tokens")

    @property
    def is_generated(self) -> bool:
        """Whether requests are generated token by token; otherwise they are one pass each, as in the paper."""
        return any(self.profile_of(m).is_generated for m in range(len(self.models)))

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Sizes a batch of one-pass requests may have, rising from 1: the profiled ones that the rules allow."""
        profiles = [self.profiles[name] for name in {model.profile_type for model in self.models}]
        profiled = {1, *(size for profile in profiles for size in profile.batch_sizes)}
        return tuple(sorted(profiled if self.rules.batch_sizes is None else profiled & {*self.rules.batch_sizes}))

    @property
    def has_slo(self) -> bool:
        """Whether some model has a deadline; otherwise placements are compared by mean latency."""
        return any(model.has_slo for model in self.models)

    def with_workload(self, workload: Workload) -> "Case":
        """The same case with other arrivals."""
        return replace(self, workload=workload)

    def with_rules(self, rules: ControllerRules) -> "Case":
        """The same case served by other rules."""
        return replace(self, rules=rules)

    def scale_slo(self, factor: float) -> "Case":
        """The same case with every deadline times `factor`; models without one keep none."""
        models = [
            replace(
                m,
                slo=m.slo * factor if m.slo < NO_SLO else m.slo,
                slo_first=m.slo_first * factor,
                slo_token=m.slo_token * factor,
            )
            for m in self.models
        ]
        return replace(self, models=tuple(models))

    def scale_rate(self, factor: float) -> "Case":
        """The same case with arrivals `factor` times as fast."""
        models = tuple(replace(model, rate=model.rate * factor) for model in self.models)
        return replace(self, models=models, workload=self.workload.scale_rate(factor))

    def with_devices(self, num_devices: int) -> "Case":
        """The same case on a cluster of another size."""
        return replace(self, cluster=replace(self.cluster, num_devices=num_devices))

    def profile_of(self, model: int) -> ModelProfile:
        """The measured profile of model number `model`."""
        return self.profiles[self.models[model].profile_type]
