"""The page pool's books: conservation, sharing, prefix lookup, eviction order, copy on write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.scheduling.pages import PagePool, extend_digests, page_digest, salt_of


def digests_of(token_ids: list[int], page_size: int) -> list[bytes]:
    digests: list[bytes] = []
    extend_digests(digests, token_ids, page_size, len(token_ids))
    return digests


def publish_all(pool: PagePool, pages: list[int], token_ids: list[int]) -> None:
    for page, digest in zip(pages, digests_of(token_ids, pool.page_size), strict=False):
        pool.publish(page, digest)


def test_allocation_takes_and_release_returns():
    pool = PagePool(4, page_size=2)
    pages = pool.allocate(3)
    assert len(set(pages)) == 3 and pool.num_free == 1 and pool.num_held == 3
    with pytest.raises(InvalidParameter, match="2 pages asked for, 1 of 4 are free"):
        pool.allocate(2)
    assert pool.num_free == 1
    pool.release(pages)
    assert pool.num_free == 4
    with pytest.raises(InvalidParameter, match="is not held"):
        pool.release(pages[:1])


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_a_pool_without_slots_is_refused(sizes):
    with pytest.raises(InvalidParameter):
        PagePool(*sizes)


def test_pages_for_rounds_up():
    pool = PagePool(1, page_size=4)
    assert [pool.pages_for(n) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_a_digest_depends_on_everything_before_the_page():
    assert digests_of([1, 2, 3, 4], 2)[1] != digests_of([9, 2, 3, 4], 2)[1]
    assert digests_of([1, 2, 3, 4], 2) == digests_of([1, 2, 3, 4, 5], 2)
    assert page_digest(b"", [1, 2]) == digests_of([1, 2], 2)[0]


def test_the_longest_cached_prefix_is_found_and_can_be_shared():
    pool = PagePool(4, page_size=2)
    pages = pool.allocate(2)
    publish_all(pool, pages, [1, 2, 3, 4])
    pool.release(pages)
    assert pool.num_free == 4 and pool.num_cached == 2
    assert pool.longest_prefix(digests_of([1, 2, 3, 4, 5, 6], 2)) == pages
    assert pool.longest_prefix(digests_of([1, 2, 9, 9], 2)) == pages[:1]
    assert pool.longest_prefix(digests_of([3, 4, 1, 2], 2)) == []
    pool.share(pages)
    assert pool.num_free == 2
    pool.check_integrity([pages])


def test_idle_pages_are_evicted_oldest_first_and_the_far_end_before_the_beginning():
    pool = PagePool(4, page_size=1)
    first, second = pool.allocate(2), pool.allocate(2)
    publish_all(pool, first, [1, 2])
    publish_all(pool, second, [3, 4])
    pool.release(second)
    pool.release(first)
    assert pool.allocate(1) == second[1:]
    assert pool.longest_prefix(digests_of([3, 4], 1)) == second[:1]
    assert pool.allocate(2) == [second[0], first[1]]
    assert pool.longest_prefix(digests_of([1, 2], 1)) == first[:1]
    pool.check_integrity()


def test_using_an_idle_page_makes_it_young_again():
    pool = PagePool(2, page_size=1)
    [old], [young] = pool.allocate(1), pool.allocate(1)
    publish_all(pool, [old], [1])
    publish_all(pool, [young], [2])
    pool.release([old])
    pool.release([young])
    pool.share([old])
    pool.release([old])
    assert pool.allocate(1) == [young]


def test_two_pages_with_equal_content_keep_the_first_findable():
    pool = PagePool(2, page_size=1)
    [first], [second] = pool.allocate(1), pool.allocate(1)
    publish_all(pool, [first], [1])
    publish_all(pool, [second], [1])
    assert pool.longest_prefix(digests_of([1], 1)) == [first]
    pool.release([second])
    assert pool.num_cached == 1 and pool.num_free == 1
    pool.check_integrity([[first]])


def test_a_fork_shares_until_one_side_writes():
    pool = PagePool(4, page_size=2)
    table = pool.allocate(2)
    fork = pool.fork(table)
    assert fork == table and pool.num_held == 2
    source, destination = pool.make_writable(fork, 1) or (None, None)
    assert (source, destination) == (table[1], fork[1]) and fork[0] == table[0] and fork[1] != table[1]
    assert pool.make_writable(fork, 1) is None
    assert pool.make_writable(table, 1) is None
    pool.check_integrity([table, fork])
    pool.release(fork)
    pool.release(table)
    assert pool.num_free == 4


def test_a_published_page_is_copied_before_it_is_written_even_by_its_only_holder():
    pool = PagePool(2, page_size=1)
    table = pool.allocate(1)
    publish_all(pool, table, [1])
    old = table[0]
    assert pool.make_writable(table, 0) == (old, table[0])
    assert pool.longest_prefix(digests_of([1], 1)) == [old]


def test_what_is_forgotten_is_found_no_more_and_held_pages_stay_held():
    pool = PagePool(4, page_size=1)
    idle, held = pool.allocate(2), pool.allocate(1)
    publish_all(pool, idle, [1, 2])
    publish_all(pool, held, [3])
    pool.release(idle)
    pool.forget()
    assert pool.num_cached == 0 and pool.num_held == 1 and pool.num_free == 3
    assert not pool.longest_prefix(digests_of([1, 2], 1)) and not pool.longest_prefix(digests_of([3], 1))
    pool.check_integrity([held])
    assert pool.make_writable(held, 0) is None, "nobody else can see it"
    publish_all(pool, held, [4])
    pool.release(held)
    assert pool.longest_prefix(digests_of([4], 1)) == held and pool.num_free == 4
    pool.check_integrity([])


VERBS = st.sampled_from(["take", "drop", "fork", "write", "publish", "forget"])


def leak_a_page(pool):
    pool._free.pop()


def free_a_held_page(pool):
    pool._free.append(pool.allocate(1)[0])


def forget_a_digest(pool):
    [page] = pool.allocate(1)
    pool.publish(page, b"x")
    pool._digest_of.clear()


def keep_a_digest_on_a_free_page(pool):
    [page] = pool.allocate(1)
    pool.release([page])
    pool._digest_of[page] = b"x"
    pool._page_of[b"x"] = page


def count_below_zero(pool):
    pool._references[pool._free[-1]] = -1


@pytest.mark.parametrize(
    "damage", [leak_a_page, free_a_held_page, forget_a_digest, keep_a_digest_on_a_free_page, count_below_zero]
)
def test_damaged_books_are_noticed(damage):
    pool = PagePool(3, page_size=1)
    pool.check_integrity([])
    damage(pool)
    with pytest.raises(RuntimeError, match="page pool"):
        pool.check_integrity()


def test_a_reference_nobody_owns_is_noticed():
    pool = PagePool(3, page_size=1)
    table = pool.allocate(2)
    pool.check_integrity([table])
    with pytest.raises(RuntimeError, match="references leak"):
        pool.check_integrity([table[:1]])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(VERBS, st.integers(0, 9)), max_size=40))
def test_any_order_of_operations_conserves_pages(operations):
    pool, tables = PagePool(6, page_size=1), []
    for number, (verb, choice) in enumerate(operations):
        table = tables[choice % len(tables)] if tables else []
        if verb == "take" and pool.num_free >= choice % 3 + 1:
            tables.append(pool.allocate(choice % 3 + 1))
        elif verb == "drop" and tables:
            pool.release(tables.pop(choice % len(tables)))
        elif verb == "fork" and tables:
            tables.append(pool.fork(table))
        elif verb == "write" and table and pool.num_free:
            pool.make_writable(table, choice % len(table))
        elif verb == "publish" and table:
            pool.publish(table[0], page_digest(b"", [number % 4]))
        elif verb == "forget":
            pool.forget()
            assert not pool.num_cached
        pool.check_integrity(tables)
    for table in tables:
        pool.release(table)
    assert pool.num_free == 6


def test_equal_tokens_under_different_salts_have_different_digests():
    tokens, found = list(range(8)), []
    for salt in (b"", salt_of("a"), salt_of("b")):
        digests: list[bytes] = []
        extend_digests(digests, tokens, 4, 8, salt)
        found.append(digests)
    assert len({digest for digests in found for digest in digests}) == 6
    assert salt_of("") == b"" and salt_of("a") == salt_of("a")
