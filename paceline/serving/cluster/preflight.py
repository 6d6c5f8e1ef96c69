"""Checks before a start: that every model of a plan is available and supports its parallel degrees."""

from collections.abc import Callable

from paceline.config import SpeculativeConfig
from paceline.errors import InvalidParameter
from paceline.extras import install
from paceline.models.architecture.config import ModelConfig
from paceline.models.resolve import ModelSource, resolve_model
from paceline.models.text.given_template import read_template, with_given_template
from paceline.models.text.tokenizer import Tokenizer
from paceline.placement.profile import ParallelConfig
from paceline.serving.cluster.plan import ClusterPlan
from paceline.types import NamedProgress, Progress


def check_loadable(
    plan: ClusterPlan, progress: NamedProgress, resolve: Callable[..., ModelSource] = resolve_model
) -> None:
    """Find, or download, the weights of all models that groups hold, and of their draft models.

    Args:
        progress: called with (what, bytes done, bytes in all).
        resolve: finds a model by its path.

    Raises:
        ModelNotFound, DownloadFailed, CorruptWeights, UnsupportedModel: see `resolve_model`.
        InvalidParameter: a degree that does not fit a model, or a chat template that cannot be used.
    """
    configs: dict[str, ModelConfig] = {}
    drafting = [SpeculativeConfig.of(spec.speculative) for spec in plan.held]
    drafters = [each.model for each in drafting if each is not None and each.model]
    for path in dict.fromkeys([*(spec.path for spec in plan.held), *drafters]):
        source = resolve(path, progress=_told_as(f"fetching {path}", progress))
        configs[path] = source.checkpoint.config
        for spec in plan.held:
            if spec.path == path and (given := spec.engine.get("chat_template")) is not None:
                _check_template(source.tokenizer, given, f"models.{spec.name}")
    for index, group in enumerate(plan.placement.groups):
        if group.parallel.num_devices > 1:
            for spec in plan.held_by(index):
                _check_split(configs[spec.path], group.parallel, f"groups[{index}]: {spec.name!r}")


def _told_as(what: str, progress: NamedProgress) -> Progress:
    return lambda done, total: progress(what, done, total)


def _check_template(tokenizer: Tokenizer, given: str, where: str) -> None:
    try:
        with_given_template(tokenizer, read_template(given))
    except InvalidParameter as error:
        raise error.about(f"{where}.engine.{error.field}") from None


def _check_split(config: ModelConfig, degrees: ParallelConfig, where: str) -> None:
    try:
        from paceline.models.torch_executor.parallel.layout import Layout
    except ModuleNotFoundError:
        problem = f"{where} is to be split and torch is not installed"
        raise InvalidParameter("groups", problem, install("cluster")) from None
    try:
        Layout.of(config, degrees.tensor, degrees.pipeline)
    except InvalidParameter as error:
        raise InvalidParameter(error.field, f"{where}: {error.problem}", error.remedy) from None
