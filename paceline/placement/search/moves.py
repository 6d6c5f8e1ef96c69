"""Random changes to a placement, small (one replica) and large (devices regrouped), for the annealing search.

Every move returns groups that fit the cluster, or None when the draw led nowhere; how they fare is not looked at here.
"""

from collections.abc import Callable, Iterator
from random import Random

from paceline.placement.placement import Group
from paceline.placement.profile import ParallelConfig
from paceline.placement.search.facts import Facts
from paceline.placement.search.partitions import draw_splits
from paceline.placement.search.search import Groups

Move = Callable[[Facts, Random, Groups], Groups | None]


def propose(facts: Facts, random: Random, groups: Groups) -> Groups | None:
    """One random move."""
    (move,) = random.choices(list(MOVES), weights=list(MOVES.values()))
    return move(facts, random, groups)


def add(facts: Facts, random: Random, groups: Groups) -> Groups | None:
    """A model joins a group; others leave it at random until there is room."""
    g = random.randrange(len(groups))
    model = random.randrange(facts.num_models)
    if model in groups[g].models:
        return None
    grown = _squeeze_in(facts, random, groups[g], model)
    return None if grown is None else _replaced(groups, {g: grown})


def remove(facts: Facts, random: Random, groups: Groups) -> Groups | None:
    """A replica goes."""
    g = random.randrange(len(groups))
    if not groups[g].models:
        return None
    return _replaced(groups, {g: groups[g].without_model(random.choice(groups[g].models))})


def hand_over(facts: Facts, random: Random, groups: Groups) -> Groups | None:
    """A replica moves to another group, more often than not in exchange for one of that group's."""
    if len(groups) < 2:
        return None
    a, b = random.sample(range(len(groups)), 2)
    if not groups[a].models:
        return None
    given = random.choice(groups[a].models)
    taken = random.choice(groups[b].models) if groups[b].models and random.random() < 0.6 else None
    if given in groups[b].models or (taken is not None and taken in groups[a].models):
        return None
    first, second = groups[a].without_model(given), groups[b]
    if taken is not None:
        first, second = first.with_model(taken), second.without_model(taken)
    second = second.with_model(given)
    return _replaced(groups, {a: first, b: second}) if _hold(facts, first, second) else None


def keep_apart(facts: Facts, random: Random, groups: Groups) -> Groups | None:
    """All models of one type leave a group, or all others do: fast requests no longer wait for slow ones."""
    g = random.randrange(len(groups))
    if not groups[g].models:
        return None
    kind, stay = _type(facts, random.choice(groups[g].models)), random.random() < 0.5
    kept = tuple(model for model in groups[g].models if (_type(facts, model) == kind) == stay)
    if len(kept) == len(groups[g].models):
        return None
    group = Group(groups[g].parallel, kept)
    return _replaced(groups, {g: _stuffed(facts, random, group) if random.random() < 0.3 else group})


def copy(facts: Facts, random: Random, groups: Groups) -> Groups | None:
    """A group takes over all models of another."""
    a, b = (random.randrange(len(groups)) for _ in range(2))
    group = Group(groups[b].parallel, groups[a].models)
    return _replaced(groups, {b: group}) if group != groups[b] and _hold(facts, group) else None


def regroup(facts: Facts, random: Random, groups: Groups) -> Groups | None:
    """The devices of one to three groups, and any idle ones, form new groups: split, merged, or split up otherwise.

    The new groups inherit models of the old; a model that would be left without a group is squeezed in.
    """
    chosen = random.sample(range(len(groups)), min(random.choice((1, 2, 2, 3)), len(groups)))
    old, kept = [groups[g] for g in chosen], [group for g, group in enumerate(groups) if g not in chosen]
    drawn = draw_splits(facts, random, facts.free_beside(kept))
    heirs = [_inherit(facts, random, split, old) for split in drawn]
    for model in sorted({model for group in old for model in group.models}):
        if heirs and not any(model in group.models for group in heirs):
            h = random.randrange(len(heirs))
            heirs[h] = _squeeze_in(facts, random, heirs[h], model) or heirs[h]
    return (*kept, *heirs)


def neighbours(facts: Facts, groups: Groups) -> Iterator[Groups]:
    """Every placement with one replica more, one fewer, or one exchanged for another model's in its group."""
    for g, group in enumerate(groups):
        lighter = [group.without_model(model) for model in group.models]
        for smaller in (group, *lighter):
            for model in range(facts.num_models):
                if model not in group.models and facts.has_room(smaller, model):
                    yield _replaced(groups, {g: smaller.with_model(model)})
        for smaller in lighter:
            yield _replaced(groups, {g: smaller})


MOVES: dict[Move, float] = {add: 25, remove: 15, hand_over: 20, keep_apart: 15, copy: 10, regroup: 15}
"""Moves and how often each is drawn, in percent."""


def _replaced(groups: Groups, changed: dict[int, Group]) -> Groups:
    return tuple(changed.get(g, group) for g, group in enumerate(groups))


def _hold(facts: Facts, *groups: Group) -> bool:
    """Each group has the memory for its models, and each model is of use there."""
    useful = all(facts.is_useful(model, group.parallel) for group in groups for model in group.models)
    return useful and all(facts.fits(group.parallel, group.models) for group in groups)


def _squeeze_in(facts: Facts, random: Random, group: Group, model: int) -> Group | None:
    """`group` with `model`, others evicted at random for room; None when it can be of no use there."""
    if not facts.is_useful(model, group.parallel):
        return None
    others = list(group.models)
    while not facts.fits(group.parallel, (*others, model)):
        others.pop(random.randrange(len(others)))
    return Group(group.parallel, (*others, model))


def _inherit(facts: Facts, random: Random, split: ParallelConfig, old: list[Group]) -> Group:
    """A new group with the models of one old group, or of all of them, in random order as far as they fit."""
    if random.random() < 0.5:
        heritage = list(random.choice(old).models)
    else:
        heritage = sorted({model for group in old for model in group.models})
    return _stuffed(facts, random, Group(split), heritage)


def _stuffed(facts: Facts, random: Random, group: Group, models: list[int] | None = None) -> Group:
    """`group` with as many of `models` (None for all) as fit, tried in random order."""
    models = list(range(facts.num_models)) if models is None else models
    random.shuffle(models)
    for model in models:
        if facts.has_room(group, model):
            group = group.with_model(model)
    return group


def _type(facts: Facts, model: int) -> str:
    return facts.case.models[model].profile_type
