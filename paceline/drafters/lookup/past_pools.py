"""`PastPools`: past outputs of finished requests, separated by `cache_salt`, so that drafts of a request never come
from texts of another salt. Indexing and lookup are the task of each pool.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar


class Pool(Protocol):
    """Past outputs of one salt."""

    num_tokens: int
    """Tokens kept."""

    def add(self, token_ids: Sequence[int]) -> None:
        """Add an output."""
        ...


_Pool = TypeVar("_Pool", bound=Pool)


class PastPools(Generic[_Pool]):
    """Pools by salt.

    Args:
        make: constructs an empty pool.
        max_tokens: limit over all pools together; the pools whose last output is oldest are dropped as a whole.
    """

    def __init__(self, make: Callable[[], _Pool], max_tokens: int) -> None:
        self._make, self._max_tokens = make, max_tokens
        self._pools: OrderedDict[bytes, _Pool] = OrderedDict()
        self._empty = make()

    def of(self, salt: bytes) -> _Pool:
        """The pool of `salt` for lookups; an empty one where it has no outputs."""
        return self._pools.get(salt, self._empty)

    def add(self, salt: bytes, token_ids: Sequence[int]) -> None:
        """Add a finished output of `salt`."""
        pool = self._pools.pop(salt, None) or self._make()
        pool.add(token_ids)
        if pool.num_tokens:
            self._pools[salt] = pool
        while len(self._pools) > 1 and sum(each.num_tokens for each in self._pools.values()) > self._max_tokens:
            self._pools.popitem(last=False)
