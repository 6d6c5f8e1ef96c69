"""`PagePool`: the page allocator of a KV cache, with reference counts and prefix caching.

Bookkeeping only: ids and counts, no keys and values (`models/`), and no decision about who gets a page (`step.py`). A
page is held (reference count above 0), idle (count 0, content kept for reuse) or free. A full page of committed tokens
has a digest chained over everything before it, so equal digests mean equal prefixes.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from paceline.errors import InvalidParameter


def page_digest(previous: bytes, token_ids: Sequence[int]) -> bytes:
    """Digest (16 bytes) of one full page of tokens after a prefix with digest `previous` (empty at the start).

    The hash is cryptographic, so that different prefixes cannot collide by accident or by attack.
    """
    return blake2b(previous + array("q", token_ids).tobytes(), digest_size=16).digest()


def salt_of(text: str) -> bytes:
    """Digest of a `cache_salt`, which starts the digest chain of its requests' pages: 16 bytes, or b"" for no salt."""
    if not isinstance(text, str):
        raise InvalidParameter("cache_salt", f"{text!r} is no text", "give a str, or leave it out")
    return blake2b(text.encode("utf-8", "replace"), digest_size=16, person=b"cache_salt").digest() if text else b""


def extend_digests(
    digests: list[bytes], token_ids: Sequence[int], page_size: int, num_tokens: int, salt: bytes = b""
) -> None:
    """Append to `digests`, in place, the digests of the further full pages of the first `num_tokens` tokens.

    Args:
        salt: from `salt_of`; pages under different salts have different digests.
    """
    for start in range(len(digests) * page_size, num_tokens - page_size + 1, page_size):
        digests.append(page_digest(digests[-1] if digests else salt, token_ids[start : start + page_size]))


class PagePool:
    """Reference-counted pages with prefix caching.

    Args:
        num_pages: pages of the cache, ids 0 .. num_pages - 1.
        page_size: token slots per page.
        can_resume: whether a text can go on after the last slot of a page, which it can always if None: a model may
            need more there than keys and values.
    """

    def __init__(self, num_pages: int, page_size: int, can_resume: Callable[[int], bool] | None = None) -> None:
        for field, value in (("num_pages", num_pages), ("page_size", page_size)):
            if value < 1:
                raise InvalidParameter(field, f"{value} is less than 1", "give the cache at least one slot")
        self.num_pages = num_pages
        self.page_size = page_size
        self.can_resume = can_resume
        self._references = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._page_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Pages that can be allocated now, including idle ones, whose content is then lost."""
        return len(self._free) + len(self._idle)

    @property
    def num_held(self) -> int:
        """Pages in some request's table."""
        return self.num_pages - self.num_free

    @property
    def num_cached(self) -> int:
        """Pages that `longest_prefix` can find."""
        return len(self._page_of)

    def pages_for(self, num_tokens: int) -> int:
        """Number of pages for `num_tokens` slots."""
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` pages with reference count 1 and undefined content: free ones, then the oldest idle ones.

        Raises:
            InvalidParameter: fewer are available; nothing is allocated then.
        """
        if count > self.num_free:
            problem = f"{count} pages asked for, {self.num_free} of {self.num_pages} are free"
            raise InvalidParameter("num_pages", problem, "release or preempt first")
        pages = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add a reference to each page, held or idle."""
        for page in pages:
            if not self._references[page]:
                self._idle.pop(page)
            self._references[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Remove a reference from each page. At count 0, a page with a digest becomes idle, another one free.

        Pages are released from the last to the first, so that the end of a prefix is evicted before its beginning.

        Raises:
            InvalidParameter: a page is not held.
        """
        for page in reversed(pages):
            if not self._references[page]:
                raise InvalidParameter("pages", f"page {page} is not held", "release each reference once")
            self._references[page] -= 1
            if self._references[page]:
                continue
            if page in self._digest_of:
                self._idle[page] = None
            else:
                self._free.append(page)

    def publish(self, page: int, digest: bytes) -> None:
        """Register a held page under its digest. All its slots must hold committed tokens, never written again.

        When another page already has this digest, that one stays registered.
        """
        if digest not in self._page_of and page not in self._digest_of:
            self._page_of[digest] = page
            self._digest_of[page] = digest

    def longest_prefix(self, digests: Sequence[bytes]) -> list[int]:
        """Pages of the longest cached prefix, without adding references: call `share` before any allocation."""
        pages: list[int] = []
        for digest in digests:
            if digest not in self._page_of:
                break
            pages.append(self._page_of[digest])
        while pages and self.can_resume and not self.can_resume(pages[-1]):
            pages.pop()
        return pages

    def fork(self, page_table: Sequence[int]) -> list[int]:
        """A second page table over the same pages. Call `make_writable` before writing to a shared page."""
        self.share(page_table)
        return list(page_table)

    def make_writable(self, page_table: list[int], index: int) -> tuple[int, int] | None:
        """Copy on write: replace ``page_table[index]`` by a new page if the old one is shared or registered.

        Returns:
            (source, destination) pages whose keys and values to copy before the write; None if nothing was replaced.
        """
        source = page_table[index]
        if self._references[source] == 1 and source not in self._digest_of:
            return None
        [page_table[index]] = self.allocate(1)
        self.release([source])
        return source, page_table[index]

    def check_integrity(self, page_tables: Iterable[Sequence[int]] | None = None) -> None:
        """Raise RuntimeError if the bookkeeping is inconsistent.

        Args:
            page_tables: all tables in use; if given, the reference counts must match them.
        """
        held = {page for page, count in enumerate(self._references) if count > 0}
        _demand(all(count >= 0 for count in self._references), "a reference count is negative")
        everywhere = [*self._free, *self._idle, *held]
        _demand(sorted(everywhere) == list(range(self.num_pages)), "a page is lost, or in two states at once")
        inverse = {digest: page for page, digest in self._digest_of.items()}
        _demand(inverse == self._page_of, "digests and pages do not match")
        _demand(not self._digest_of.keys() & set(self._free), "a free page has a digest")
        _demand(self._digest_of.keys() >= self._idle.keys(), "an idle page has no digest")
        if page_tables is not None:
            counted = Counter(page for table in page_tables for page in table)
            _demand(all(counted[page] == count for page, count in enumerate(self._references)), "references leak")

    def forget(self) -> None:
        """Unregister all pages, because their content is no longer valid."""
        self._free += self._idle
        self._idle.clear()
        self._page_of.clear()
        self._digest_of.clear()

    def _evict(self) -> int:
        """Unregister and return the least recently used idle page."""
        page, _ = self._idle.popitem(last=False)
        del self._page_of[self._digest_of.pop(page)]
        return page


def _demand(holds: bool, complaint: str) -> None:
    if not holds:
        raise RuntimeError(f"page pool: {complaint}")
