"""`PastPools`: what drafters remember of finished requests, apart by salt, so that no request is drafted for from texts
of another salt. How a pool counts and looks up is its own business.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar


class Pool(Protocol):
    """Past outputs of one salt."""

    num_tokens: int
    """Tokens kept."""

    def add(self, token_ids: Sequence[int]) -> None:
        """Take in an output."""
        ...


_Pool = TypeVar("_Pool", bound=Pool)


class PastPools(Generic[_Pool]):
    """Pools by salt.

    Args:
        make: an empty pool.
        max_tokens: kept in all pools together; those whose salt was longest without an output are given up whole.
    """

    def __init__(self, make: Callable[[], _Pool], max_tokens: int) -> None:
        self._make, self._max_tokens = make, max_tokens
        self._pools: OrderedDict[bytes, _Pool] = OrderedDict()
        self._empty = make()

    def of(self, salt: bytes) -> _Pool:
        """The pool of `salt`, to look things up in; an empty one where nothing was said under it."""
        return self._pools.get(salt, self._empty)

    def add(self, salt: bytes, token_ids: Sequence[int]) -> None:
        """Take in a finished output of `salt`."""
        pool = self._pools.pop(salt, None) or self._make()
        pool.add(token_ids)
        self._pools[salt] = pool
        while len(self._pools) > 1 and sum(each.num_tokens for each in self._pools.values()) > self._max_tokens:
            self._pools.popitem(last=False)
