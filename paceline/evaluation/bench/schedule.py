"""Who goes first: orders of the arms, balanced over prompts."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def balanced_orders(count: int) -> list[list[int]]:
    """Orders of 0 .. count - 1 in which each stands at every place, and before every other, equally often.

    A Latin square balanced for first-order carry-over: `count` orders when it is even, twice as many when it is odd
    (Williams 1949). From three on no order begins with what the one before it ended with, going round: a disturbance
    that outlives a cell would hit the same arm twice, and neighbouring cells would not be independent.
    """
    first = [(place + 1) // 2 if place % 2 else (count - place // 2) % count for place in range(count)]
    square = [[(each + shift) % count for each in first] for shift in range(count)]
    return square if count % 2 == 0 else square + [square[-shift][::-1] for shift in range(count)]


def in_order(items: Sequence[T], number: int) -> list[T]:
    """`items` in the order whose turn it is for cell `number`."""
    orders = balanced_orders(len(items))
    return [items[i] for i in orders[number % len(orders)]]
