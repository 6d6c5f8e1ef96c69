"""`layer_skip`: the target drafts with some of its layers left out, or with its first ones only (early exit).

Zhang et al. 2023 (Draft and Verify) for inner layers, Elhoushi et al. 2024 (LayerSkip) for early exit. Needs no other
model, no extra cache and no prefill. A draft step costs the kept layers and the output head. It pays where few layers
predict nearly as well as all: in large models, and in models trained for it. For small models,
`evaluation/layer_search.py` finds which layers can be skipped on given texts.
"""

from collections.abc import Sequence

from paceline.drafters.self_drafts.self_draft import SelfDraft, common_of_target
from paceline.drafters.services import DraftServices
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.base import SkipsLayers


def make_layer_skip(
    services: DraftServices,
    skip_layers: Sequence[int] | int | None = None,
    exit_layer: int | None = None,
    draft_vocab_size: int | None = None,
) -> SelfDraft:
    """The drafter that leaves out `skip_layers`.

    Args:
        skip_layers: indices of the layers to leave out, or their number, spread evenly over the inner layers; by
            default a fifth of all.
        exit_layer: run only this many layers, the first ones; instead of `skip_layers`.
        draft_vocab_size: how many tokens may be proposed, the first ones; by default see `common_tokens`.

    Raises:
        InvalidParameter: both are given, or they name no layers, all of them, or layers the model does not have.
        UnsupportedModel: the model's executor cannot leave layers out, or cannot score a part of its vocabulary.
    """
    model = services.target.model
    if not isinstance(model, SkipsLayers):
        raise UnsupportedModel("layer_skip: this executor runs whole models only; use the numba or torch executor")
    if skip_layers is not None and exit_layer is not None:
        raise InvalidParameter("exit_layer", "is given beside skip_layers", "give one of the two")
    num_layers = model.config.num_hidden_layers
    if exit_layer is not None:
        skipped = _after(exit_layer, num_layers)
    elif skip_layers is None or isinstance(skip_layers, int):
        skipped = inner_layers(max(1, num_layers // 5) if skip_layers is None else skip_layers, num_layers)
    else:
        skipped = _checked(skip_layers, num_layers)
    kept = kept_layers(skipped, num_layers)
    view = model.with_layers(kept)
    ratio, common = common_of_target(services, view, draft_vocab_size, len(kept))
    return SelfDraft("layer_skip", services, view, cost_ratio=ratio, common=common)


def kept_layers(skipped: Sequence[int], num_layers: int) -> list[int]:
    """The remaining layers, in order."""
    return [layer for layer in range(num_layers) if layer not in skipped]


def inner_layers(count: int, num_layers: int) -> list[int]:
    """`count` layers spread evenly between the first and the last, which matter most and are always kept.

    Raises:
        InvalidParameter: there are not that many.
    """
    if not 1 <= count <= num_layers - 2:
        problem = f"{count} of {num_layers} layers cannot be left out between the first and the last"
        raise InvalidParameter("skip_layers", problem, f"leave out 1 to {num_layers - 2}, or name the layers")
    return [1 + (2 * i + 1) * (num_layers - 2) // (2 * count) for i in range(count)]


def _after(exit_layer: int, num_layers: int) -> list[int]:
    if not 1 <= exit_layer < num_layers:
        raise InvalidParameter("exit_layer", f"{exit_layer} of {num_layers}", f"keep 1 to {num_layers - 1} layers")
    return list(range(exit_layer, num_layers))


def _checked(skip_layers: Sequence[int], num_layers: int) -> list[int]:
    unknown = [layer for layer in skip_layers if layer not in range(num_layers)]
    if unknown or not 0 < len(set(skip_layers)) < num_layers:
        problem = f"{list(skip_layers)} is not some of the layers 0 to {num_layers - 1}"
        raise InvalidParameter("skip_layers", problem, "name at least one layer and leave at least one")
    return list(skip_layers)
