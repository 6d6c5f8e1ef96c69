"""The paper's whole search (AlpaServe, Algorithm 2): uniform groups for all models, or separate pools of devices for
models of unlike latency, so that a fast model's requests never wait for a slow one's."""

from paceline.placement.search.fast import fast_greedy
from paceline.placement.search.partitions import bucket_partitions, buckets, device_shares, uniform_skeletons
from paceline.placement.search.search import Groups, Score, Search, empty_groups


def one_pool(search: Search) -> Groups:
    """The best of all uniform group partitions over the whole cluster, every model in one pool."""
    return _fill(search, tuple(range(search.facts.num_models)), search.facts.num_devices)[1]


def separate_pools(search: Search) -> Groups:
    """The best over all ways to join buckets of similar latency into pools and to share the devices out."""
    filled: dict[tuple[tuple[int, ...], int], tuple[Score, Groups]] = {}
    best, best_score = (), Score(0, 0.0)
    for parts in bucket_partitions(buckets(search.facts)):
        for share in device_shares(search.facts, parts):
            pools = list(zip(parts, share, strict=True))
            for pool in pools:
                if pool not in filled:
                    filled[pool] = _fill(search, *pool)
            groups = tuple(group for pool in pools for group in filled[pool][1])
            served = sum(filled[pool][0].served for pool in pools)
            if served >= best_score.served:
                score = search.scored(groups)
                best, best_score = (groups, score) if score > best_score else (best, best_score)
    return best


def _fill(search: Search, models: tuple[int, ...], num_devices: int) -> tuple[Score, Groups]:
    """The best uniform partition of `num_devices` for `models` alone."""
    best = Score(0, 0.0), ()
    for splits in uniform_skeletons(search.facts, num_devices):
        groups = fast_greedy(search, empty_groups(splits), models)
        best = max(best, (search.scored(groups), groups), key=lambda pair: pair[0])
    return best
