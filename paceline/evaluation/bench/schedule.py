"""Balanced orders in which the arms answer cells."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def balanced_orders(count: int) -> list[list[int]]:
    """Orders of 0 .. count - 1 in which each is at every place, and directly before every other, equally often.

    A Latin square balanced for first-order carry-over: `count` orders if it is even, twice as many if it is odd
    (Williams 1949). From three on, no order begins with the last element of the one before it, cyclically; else a
    disturbance across two cells would affect the same arm twice, and neighbouring cells would not be independent.
    """
    first = [(place + 1) // 2 if place % 2 else (count - place // 2) % count for place in range(count)]
    square = [[(each + shift) % count for each in first] for shift in range(count)]
    return square if count % 2 == 0 else square + [square[-shift][::-1] for shift in range(count)]


def in_order(items: Sequence[T], number: int) -> list[T]:
    """`items` in the balanced order of cell `number`."""
    orders = balanced_orders(len(items))
    return [items[i] for i in orders[number % len(orders)]]
