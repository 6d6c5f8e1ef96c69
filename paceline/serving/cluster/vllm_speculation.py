"""`speculation_of`: translate the drafter of a plan's model into vLLM's `--speculative-config`.

Names are those of `vllm/config/speculative.py` (2026). Unsupported drafters are errors, because a plan that relies on
drafts would be too slow without them. Not for engines of this project.
"""

from typing import Any

from paceline.config import SpeculativeConfig
from paceline.errors import InvalidParameter, PacelineError, first_line
from paceline.models.heads.files import read_head
from paceline.sampling import AUTO, rule_called
from paceline.serving.models.model_spec import ModelSpec

LOOKUPS = ("ngram", "suffix")
"""Drafters without weights."""
HEADS = ("eagle", "eagle3", "dflash", "dspark", "medusa", "mlp_speculator")
"""Those that need a folder that vLLM reads (`paceline heads convert --to vllm`)."""
METHODS = (*LOOKUPS, "draft_model", *HEADS, "mtp", "head")
"""What a plan may name. `mtp` is in the model's own file; `head` is one of `HEADS`, as its file says."""
USUAL = 8
"""Drafted tokens where a plan does not say how many."""
_OPTIONS = {"ngram": ("prompt_lookup_max", "prompt_lookup_min")}
_NGRAM = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
"""Our `ngram` drafter's own, which vLLM would take otherwise."""


def speculation_of(spec: ModelSpec) -> dict[str, Any] | None:
    """The value of vLLM's `speculative_config`; None for plain decoding.

    Raises:
        InvalidParameter: vLLM has no such drafter, option or rule, or needs a model that is not named.
    """
    config = SpeculativeConfig.of(spec.speculative)
    if config is None or config.num_draft_tokens == 0:
        return None
    where, method = f"models.{spec.name}.speculative", config.method
    if method not in METHODS:
        raise InvalidParameter(
            where, f"vLLM has no drafter {method!r}", f"plan with one of {', '.join(METHODS)}, or none"
        )
    if config.rule != AUTO and rule_called(config.rule).is_lossy:
        raise InvalidParameter(where, f"vLLM has no rule {config.rule!r}", "leave rule out: its sampler is exact")
    options = dict(config.options)
    model = config.model or options.pop("model", None)
    options.pop("model", None)
    for name in options:
        if name not in _OPTIONS.get(method, ()):
            raise InvalidParameter(where, f"vLLM's {method} has no option {name!r}", "leave it out of the plan")
    found: dict[str, Any] = {"method": method}
    if method in (*HEADS, "head", "draft_model"):
        if not model or model == "auto":
            remedy = "name its folder (paceline heads convert --to vllm) as the model"
            raise InvalidParameter(where, f"{method} names no model, and vLLM knows none of ours", remedy)
        found["model"] = str(model)
        if method == "head":
            found["method"] = _family(str(model), where)
    elif model:
        raise InvalidParameter(where, f"{method} takes no model", "leave it out")
    found["num_speculative_tokens"] = int(config.num_draft_tokens or USUAL)
    return found | ({**_NGRAM, **options} if method == "ngram" else {})


def _family(folder: str, where: str) -> str:
    """The method of the head in `folder`: vLLM goes by the folder's name where it is not told."""
    try:
        family = read_head(folder).config.family
    except PacelineError as error:
        problem = f"vLLM must be told what kind of head {folder} is, and it cannot be read here ({first_line(error)})"
        raise InvalidParameter(where, problem, f"plan with one of {', '.join(HEADS)} in place of head") from None
    if family not in HEADS:
        raise InvalidParameter(where, f"vLLM has no {family} heads", f"plan with one of {', '.join(HEADS)}, or none")
    return family
