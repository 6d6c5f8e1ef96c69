"""Finds heads by name or target: beside the target's weights, in the user's cache, in the package, or on the hub.

Folders have the form ``<model>/<family>/{config.json, model.safetensors, CARD.md}``. Names are ``model/family``, e.g.
``smollm2-135m/eagle3``. Not for deciding whether a head is worth using (`drafters`).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Literal

from paceline.errors import HeadWarning, InvalidParameter, ModelNotFound, PacelineError, first_line
from paceline.models.cache_dir import cache_dir
from paceline.models.fetch.download import BUILTIN_MODELS
from paceline.models.files.checkpoint import LiesInFiles
from paceline.models.heads.files import CARD, CONFIG, WEIGHTS, read_head
from paceline.models.heads.fingerprint import target_print, weights_digest
from paceline.models.heads.fit import check_fit
from paceline.models.heads.layouts.base import Reading
from paceline.models.heads.own_block import KEY, read_own_block
from paceline.models.heads.record import MOST_STEPS, HeadRecord, TargetPrint
from paceline.models.heads.self_check import check_entry
from paceline.models.heads.strict import Settings
from paceline.models.json_file import read_json
from paceline.models.resolve import ModelSource, hub_folder

Place = Literal["beside", "cache", "shipped"]
"""Beside the target's weights, in the user's cache, or in the package."""
_HUB_FILES = ("*.json", "*.safetensors", "*.pt", "*.bin", CARD)


@dataclass(frozen=True, eq=False, slots=True)
class HeadRef:
    """A head that was found; its tensors have not been read.

    Attributes:
        name: ``model/family``, or the path of a head beside the weights.
        path: its folder.
        place: where it was found.
        family: its family; empty for files of other programs.
        target: the target that it was trained for; None where unknown.
        card: its model card.
        problem: why its config cannot be read; empty where it can.
    """

    name: str
    path: Path
    place: Place
    family: str = ""
    target: TargetPrint | None = None
    card: Mapping[str, object] = field(default_factory=dict)
    problem: str = ""


def user_heads() -> Path:
    """The user's folder of heads, in the cache; training saves here. It need not exist yet."""
    return cache_dir() / "heads"


def shipped_heads() -> Path:
    """The folder of the heads in the package."""
    return Path(str(files("paceline"))) / "heads"


def all_heads() -> list[HeadRef]:
    """Every named head; one in the user's cache replaces a shipped one of the same name."""
    return _first_of_each(_named())


def find_heads(target: ModelSource) -> list[HeadRef]:
    """Heads for `target`: those beside its weights first, then those in the user's cache, then shipped ones.

    Heads whose files name other weights are left out. Named heads must have a target in their files; heads beside the
    weights need not. A damaged config in the user's cache does not replace a shipped head. A model with an adapter
    also has the heads of the model that was adapted, which draft for both.
    """
    return _first_of_each(_all_for(target))


def best_head(target: ModelSource) -> HeadRef | None:
    """The best head for `target`, as `load_best` takes it; None where there is none."""
    found = load_best(target)
    return None if found is None else found[0]


def load_best(target: ModelSource, family: str | None = None) -> tuple[HeadRef, HeadRecord] | None:
    """The best head for `target` that can be used, and its record; None where there is none.

    Of several heads it is the one with the most tokens per pass in its card; heads without a figure come last. Heads
    trained for an adapter precede those of the model that was adapted.

    Warns:
        HeadWarning: a head was passed over because it is damaged or cannot be used.
    """
    for ref in _named():
        if ref.problem and ref.name.startswith(f"{target.name}/") and family in (None, ref.path.name):
            warnings.warn(f"a head is passed over: {ref.problem}", HeadWarning, stacklevel=2)
    known = [ref for ref in _all_for(target) if family in (None, ref.family)]
    own = target_print(target)

    def rank(ref: HeadRef) -> tuple[bool, float]:
        return ref.target is None or _same(ref.target, own), _tokens_per_pass(ref)

    best = sorted(_first_of_each(known), key=rank, reverse=True)
    for ref in [ref for first in best for ref in known if ref.name == first.name]:
        try:
            return ref, load_head(ref.path, target)
        except PacelineError as error:
            warnings.warn(f"a head is passed over: {first_line(error)}", HeadWarning, stacklevel=2)
    return None


def _all_for(target: ModelSource) -> list[HeadRef]:
    """As `find_heads`, with those that another one of the same name replaces."""
    prints = _prints(target)
    beside = [_ref(config.parent, "beside", str(config.parent)) for config in _beside(target)]
    named = [ref for ref in _named() if ref.target is not None]
    return [ref for ref in (*beside, *named) if ref.target is None or any(_same(ref.target, one) for one in prints)]


def _prints(target: ModelSource) -> list[TargetPrint]:
    """The print of `target`, then that of the model that it adapts, if any."""
    own = target_print(target)
    return [own] if target.base is None else [own, replace(own, sha256=weights_digest(target.base))]


def _named() -> list[HeadRef]:
    """Every head in the user's cache, then every shipped one."""
    places: tuple[tuple[Place, Path], ...] = (("cache", user_heads()), ("shipped", shipped_heads()))
    return [
        _ref(config.parent, place, f"{config.parent.parent.name}/{config.parent.name}")
        for place, folder in places
        for config in sorted(folder.glob(f"*/*/{CONFIG}"))
    ]


def _first_of_each(refs: Sequence[HeadRef]) -> list[HeadRef]:
    """The first reference of every name."""
    found: dict[str, HeadRef] = {}
    for ref in refs:
        found.setdefault(ref.name, ref)
    return list(found.values())


def _tokens_per_pass(ref: HeadRef) -> float:
    """The most tokens per pass in a head's card, from the engine or from training (``held_out``); 0 where none is."""
    accepted, held_out = ref.card.get("accepted"), ref.card.get("held_out")
    sets = accepted.values() if isinstance(accepted, dict) else ()
    figures = [each.get("tokens_per_pass") for each in sets if isinstance(each, dict)]
    if isinstance(held_out, dict):
        figures.append(held_out.get("replayed"))
    return max(
        (float(one) for one in figures if isinstance(one, int | float) and 0 < one <= 1 + MOST_STEPS), default=0.0
    )


def load_head(name_or_path: str | Path, target: ModelSource | None = None, *, reading: Reading | None = None,
              any_weights: bool = False) -> HeadRecord:  # fmt: skip
    """The head of that name, path or hub id, checked against `target`.

    Its maximum position is raised to the target's if it was trained on shorter texts; its notes then mention this.

    Args:
        reading: how to interpret ambiguous files; what the target says is added to it.
        any_weights: accept a head for other weights of the same sizes, with a warning.

    Raises:
        ModelNotFound: there is no such head.
        InvalidParameter: it was trained for another target, or a setting or the card in its file is invalid.
        CorruptWeights, UnsupportedModel: its files cannot be used.

    Warns:
        HeadWarning: it is used with other weights or another chat template than in training.
    """
    path = head_path(name_or_path)
    prints = [] if target is None else _prints(target)
    own = prints[0] if prints else None
    known = {} if target is None else {"embedding_scale": _scale_of(target)}
    record = read_head(path, replace(reading or Reading(), target=own, **known))
    try:
        check_entry(record)
    except InvalidParameter as error:
        raise error.about(f"{path}: {error.field}") from None
    if target is None or own is None:
        return record
    fitting = (one for one in prints if one.sha256 == record.config.target.sha256)
    for sentence in check_fit(record, next(fitting, own), any_weights):
        warnings.warn(f"{name_or_path}: {sentence}", HeadWarning, stacklevel=2)
    return _as_far_as(record, target)


def _ref(folder: Path, place: Place, name: str) -> HeadRef:
    """The reference to the head in `folder`; a damaged config sets `problem` instead of raising."""
    try:
        values = read_json(folder / CONFIG)
        own = read_own_block(Settings(values, folder))
        family = str(values.get(KEY, {}).get("family", ""))
    except PacelineError as error:
        return HeadRef(name, folder, place, problem=first_line(error))
    return HeadRef(name, folder, place, family, own.target, own.card)


def _beside(target: ModelSource) -> list[Path]:
    """Configs of heads beside the weights: ``heads/`` in a model's folder, ``NAME.heads/`` next to ``NAME.gguf``."""
    if not isinstance(target.checkpoint, LiesInFiles):
        return []
    path = target.checkpoint.path
    folder = path / "heads" if path.is_dir() else path.with_suffix(".heads")
    return sorted(folder.glob(f"*/{CONFIG}"))


def _same(own: TargetPrint, target: TargetPrint) -> bool:
    sizes = (own.hidden_size, own.vocab_size) == (target.hidden_size, target.vocab_size)
    return sizes and (not own.sha256 or own.sha256 == target.sha256)


def head_path(name_or_path: str | Path) -> Path:
    """The path of the head of that name, path or hub id. Raises ModelNotFound or DownloadFailed."""
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    name = str(name_or_path)
    for ref in all_heads():
        if ref.name == name:
            return ref.path
    known = ", ".join(ref.name for ref in all_heads()) or "none"
    if name.count("/") == 1 and not name.startswith((".", *(f"{model}/" for model in BUILTIN_MODELS))):
        return hub_folder(name, _HUB_FILES, f"no head of that name or path (known: {known})")
    raise ModelNotFound(f"head {name!r}: no such folder or file; known heads: {known}; {CONFIG} and {WEIGHTS} make one")


def _scale_of(target: ModelSource) -> float:
    """What the target's embedding layer multiplies by. Other models than Gemma do so outside of that layer."""
    config = target.checkpoint.config
    return config.embedding_scale if config.model_type.startswith("gemma") else 1.0


def _as_far_as(record: HeadRecord, target: ModelSource) -> HeadRecord:
    layer, longest = record.config.layer, target.checkpoint.config.max_position_embeddings
    trained = record.config.max_positions
    if layer is None:
        return record
    if layer.max_position_embeddings < longest:
        record = replace(record, config=replace(record.config, layer=replace(layer, max_position_embeddings=longest)))
    if not trained or trained >= longest:
        return record
    note = f"trained to {trained} positions, the target goes to {longest}: expect fewer accepted tokens after that"
    return replace(record, notes=(*record.notes, note))
