"""Drafters by name. To add one, add a file and a line here. A user's own class is named ``"package.module:ClassName"``.

Modules are imported on first use, so that a drafter's libraries cost nothing until then.
"""

import inspect
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from paceline.config import SpeculativeConfig
from paceline.drafters.auto import AUTO
from paceline.drafters.base import Drafter
from paceline.drafters.services import DraftServices
from paceline.errors import InvalidParameter, nearest
from paceline.models.base import NORMED
from paceline.option_types import check_types
from paceline.speculation.traits import DrafterTraits

_DRAFTERS = {
    "plain": "paceline.drafters.plain:Plain",
    "ngram": "paceline.drafters.lookup.ngram:NGram",
    "suffix": "paceline.drafters.lookup.make:make_suffix",
    "draft_model": "paceline.drafters.draft_models.draft_model:make_draft_model",
    "cross_vocabulary": "paceline.drafters.draft_models.cross_vocabulary:make_cross_vocabulary",
    "hybrid": "paceline.drafters.hybrid.drafter:make_hybrid",
    "lookahead": "paceline.drafters.self_drafts.lookahead:Lookahead",
    "jacobi": "paceline.drafters.self_drafts.jacobi:Jacobi",
    "specinfer": "paceline.drafters.draft_models.specinfer:make_specinfer",
    "layer_skip": "paceline.drafters.self_drafts.layer_skip:make_layer_skip",
    "sparse_cache": "paceline.drafters.self_drafts.sparse_cache:make_sparse_cache",
    "spire": "paceline.drafters.self_drafts.spire:make_spire",
    "head": "paceline.drafters.heads.make:head",
    "eagle": "paceline.drafters.heads.make:eagle",
    "eagle3": "paceline.drafters.heads.make:eagle3",
    "dflash": "paceline.drafters.heads.make:dflash",
    "dspark": "paceline.drafters.heads.make:dspark",
    "mtp": "paceline.drafters.heads.make:mtp",
    "p_eagle": "paceline.drafters.heads.make:p_eagle",
    "mlp_speculator": "paceline.drafters.heads.make:mlp_speculator",
    "medusa": "paceline.drafters.heads.make:medusa",
    "hydra": "paceline.drafters.heads.make:hydra",
    "blockwise": "paceline.drafters.heads.make:blockwise",
    "falcon": "paceline.drafters.heads.make:falcon",
}

_REMEDY = "use one that `paceline generate --help` lists, or 'package.module:ClassName'"


def drafter_names() -> tuple[str, ...]:
    """Names that `make_drafter` accepts."""
    return tuple(_DRAFTERS)


def check_drafter(wanted: SpeculativeConfig | None) -> None:
    """Raise InvalidParameter for an unknown drafter; loads no models."""
    if wanted is not None and wanted.method != AUTO:
        _path_of(wanted.method)


def option_names(name: str) -> tuple[str, ...]:
    """Option names of the drafter called `name`. Raises InvalidParameter for an unknown drafter."""
    return tuple(one for one in inspect.signature(_load(name)).parameters if one != "services")


def make_drafter(name: str, services: DraftServices | None = None, **options: Any) -> Drafter:
    """A new drafter.

    Args:
        name: one of `drafter_names`, or ``"package.module:ClassName"`` of a class that implements `Drafter`.
        services: resources of the engine; passed on when the constructor has an argument of that name.
        options: the other arguments of its constructor.

    Raises:
        InvalidParameter: an unknown drafter, an unknown, missing or invalid option, or a class that does not implement
            `Drafter`; the message says what is near, or where all are listed.
    """
    constructor = _load(name)
    parameters = dict(inspect.signature(constructor).parameters)
    wants = parameters.pop("services", None)
    lent = {"services": services} if wants else {}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    unknown = [] if takes_any else [option for option in options if option not in parameters]
    if unknown:
        remedy = f"its options are: {', '.join(parameters) or 'none'}"
        if unknown[0] == "model" and "models" in parameters:
            named = f'models=["{options["model"]}"]'
            remedy = f"it takes several: --draft-option '{named}', or options={{'models': [...]}}"
        raise InvalidParameter(unknown[0], f"drafter {name!r} has no such option", remedy)
    missing = [one.name for one in parameters.values() if _is_required(one) and one.name not in options]
    if missing:
        option = "--draft-model" if missing[0] == "model" else f"--draft-option {missing[0]}=..."
        remedy = f"pass {missing[0]}=... or {option}"
        raise InvalidParameter(missing[0], f"drafter {name!r} cannot do without it", remedy)
    if wants and _is_required(wants) and services is None:
        raise InvalidParameter("services", f"drafter {name!r} works inside an engine only", "make it through LLM(...)")
    check_types(constructor, options)
    drafter = constructor(**lent, **options)
    _check(name, drafter)
    if services is not None and drafter.traits.taps:
        _check_taps(name, drafter.traits, services.target.model.config.num_hidden_layers)
    return drafter


def _check(name: str, drafter: Any) -> None:
    """Raise InvalidParameter for an object that does not implement `Drafter`."""
    lacking = [method for method in ("propose", "observe", "release") if not callable(getattr(drafter, method, None))]
    if lacking or not isinstance(getattr(drafter, "name", None), str):
        problem = f"{name!r} has no {', '.join(lacking) or 'name'}"
        raise InvalidParameter("drafter", problem, "write it, or inherit from BaseDrafter")
    if not isinstance(getattr(drafter, "traits", None), DrafterTraits):
        problem = f"{name!r} declares no traits"
        raise InvalidParameter("drafter", problem, "give it traits = DrafterTraits(...), or inherit from BaseDrafter")
    if drafter.traits.chooses and not hasattr(drafter, "chosen_seconds"):
        problem = f"{name!r} chooses between ways to draft and says not what they took"
        raise InvalidParameter("drafter", problem, "give it chosen_seconds, as of drafters.base.ChoosingDrafter")


def _check_taps(name: str, traits: DrafterTraits, num_layers: int) -> None:
    """Raise InvalidParameter for taps that the target does not have, which would make every pass fail."""
    unknown = [tap for tap in traits.taps if tap != NORMED and tap not in range(num_layers + 1)]
    if unknown:
        problem = f"{name!r} asks for the hidden states {unknown} of a model of {num_layers} layers"
        raise InvalidParameter("taps", problem, f"name taps from 0 to {num_layers}, or NORMED")


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return not variadic and parameter.default is parameter.empty


def _path_of(name: str) -> tuple[str, str, str]:
    """(module, attribute, remedy for a wrong one) of a name or a path. Raises InvalidParameter if unknown."""
    module, _, attribute = _DRAFTERS.get(name, name).partition(":")
    if not module or not attribute or module.startswith("."):
        close = nearest(name, (AUTO, "none", *_DRAFTERS))
        raise InvalidParameter("drafter", f"{name!r} is unknown", close + _REMEDY)
    return module, attribute, _REMEDY


def _load(name: str) -> Any:
    """The class or function that a name or a path denotes."""
    module, attribute, remedy = _path_of(name)
    try:
        constructor = getattr(_module(module), attribute)
    except ModuleNotFoundError as error:
        problem = f"{name!r} cannot be imported, there is no module {error.name!r}"
        raise InvalidParameter("drafter", problem, f"install it, or {remedy}") from error
    except AttributeError as error:
        raise InvalidParameter("drafter", f"module {module!r} has no {attribute!r}", remedy) from error
    if not callable(constructor):
        raise InvalidParameter("drafter", f"{name!r} is no class", remedy)
    return constructor


def _module(name: str) -> ModuleType:
    """The module called `name`, from the current folder if it is nowhere else.

    The command ``paceline`` does not search that folder by itself, as ``python -m`` and scripts there do.

    Raises:
        ModuleNotFoundError: it is not there either, or a module that it imports is missing.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        if error.name != name.partition(".")[0] or here in sys.path or sys.flags.safe_path:
            raise
    sys.path.append(here)  # last, so that it hides no installed module
    try:
        return import_module(name)
    except ModuleNotFoundError:
        sys.path.remove(here)
        raise
