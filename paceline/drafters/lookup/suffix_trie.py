"""`SuffixTrie`: counts of all token sequences of up to `max_depth` tokens in some texts, with their continuations.

The trie is lazy: a sequence that occurs once is a leaf that points into its text; it gets children when it occurs
again. So adding a token takes as many steps as the longest repeated suffix has tokens, not `max_depth`, and memory is
about two nodes per token. Not the place for choosing a draft (`suffix.py`).
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from paceline.sampling.randomness import ROOT


class Node:
    """A token sequence of some text.

    Attributes:
        count: its occurrences.
        children: next token to node; None for a leaf, where `text` from `next` on is what follows.
    """

    __slots__ = ("children", "count", "next", "text")

    def __init__(self, text: Sequence[int], next_index: int) -> None:
        self.count = 1
        self.children: dict[int, Node] | None = None
        self.text = text
        self.next = next_index


class Place(NamedTuple):
    """A position in the trie: a node, or `offset` tokens into the text after a leaf."""

    node: Node
    offset: int = 0


class Draft(NamedTuple):
    """Proposed nodes, parents before children, and their estimated acceptance probabilities, in descending order."""

    tokens: list[int]
    parents: list[int]
    chances: list[float]

    @property
    def score(self) -> float:
        """Tokens expected to be accepted."""
        return sum(self.chances)


NO_DRAFT = Draft([], [], [])


class Text:
    """One text of a trie: its tokens, and the nodes of its suffixes that occurred before (index = length)."""

    __slots__ = ("active", "tokens")

    def __init__(self, root: Node) -> None:
        self.tokens: list[int] = []
        self.active = [root]


class SuffixTrie:
    """Counted suffixes of several texts.

    Args:
        max_depth: longest sequence counted. A sequence that occurred once is followed beyond it.
    """

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.root = _branch()

    def new_text(self) -> Text:
        """An empty text. Texts of one trie are written one after the other, not in turns."""
        return Text(self.root)

    def append(self, text: Text, token: int) -> int:
        """Append a token to `text` and to its suffixes up to `max_depth`; returns the number of nodes visited."""
        text.tokens.append(token)
        end, active = len(text.tokens), [self.root]
        for depth, node in enumerate(text.active, start=1):
            assert node.children is not None
            child = node.children.get(token)
            if child is None:
                node.children[token] = Node(text.tokens, end)
                continue
            child.count += 1
            if depth == self.max_depth:
                child.text, child.next = (), 0  # no single text follows it any more
                continue
            if child.children is None:
                _split(child)
            active.append(child)
        visited, text.active = len(text.active), active
        return visited

    def remove(self, text: Text, start: int) -> int:
        """Remove the counts of sequences that begin at token `start` of `text`; returns the number of nodes visited.

        To remove a text, call it once for each of its tokens, first to last.
        """
        node, visited = self.root, 0
        for token in text.tokens[start : start + self.max_depth]:
            children = node.children
            if children is None:
                break
            node, visited = children[token], visited + 1
            node.count -= 1
            if not node.count:
                del children[token]
                break
        return visited

    def find(self, sequence: Sequence[int]) -> Place | None:
        """Where `sequence` (at most `max_depth` tokens) ends; None when it does not occur."""
        node: Node | None = self.root
        for depth, token in enumerate(sequence):
            if node.children is None:
                rest = len(sequence) - depth
                goes_on = list(node.text[node.next : node.next + rest]) == list(sequence[depth:])
                return Place(node, rest) if goes_on else None
            node = node.children.get(token)
            if node is None:
                return None
        return Place(node)


class Matches(Sequence[Place]):
    """Where the suffixes of length 1, 2, ... of `tail` occur in a trie that does not hold the end of `tail` itself.

    Suffixes are looked up lazily. A suffix of an occurring sequence occurs too, so the number of matches is found by
    bisection.

    Args:
        tail: latest tokens of a text, at most the trie's depth.
        expected: initial guess of the number of matches; a correct guess takes two lookups.
    """

    def __init__(self, trie: SuffixTrie, tail: Sequence[int], expected: int) -> None:
        self._trie, self._tail = trie, list(tail)
        self._found: dict[int, Place | None] = {}
        self._length = self._longest(min(expected, len(self._tail)))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Place:  # type: ignore[override]
        place = self._look_up(index + 1)
        if place is None:
            raise IndexError(index)
        return place

    def _longest(self, expected: int) -> int:
        """The length of the longest suffix that occurs."""
        occurs, fails = 0, len(self._tail) + 1
        guess = max(expected, 1)
        while fails - occurs > 1:
            if self._look_up(guess) is None:
                fails = guess
            else:
                occurs = guess
            guess = occurs + 1 if occurs == expected else (occurs + fails) // 2
        return occurs

    def _look_up(self, length: int) -> Place | None:
        if length not in self._found:
            self._found[length] = self._trie.find(self._tail[len(self._tail) - length :])
        return self._found[length]


def best_draft(
    places: Sequence[Place],
    limit_of: Callable[[int], int],
    follow: Callable[[Place, int], Draft],
    max_depth: int,
    enough: float = 1.0,
) -> Draft:
    """The draft with the highest score over all matches, that of the longest match on ties.

    Args:
        places: where the suffixes of length 1, 2, ... ended.
        limit_of: match length to the largest number of nodes to draft, non-decreasing.
        follow: `follow_path` or `follow_tree`, with its threshold bound.
        enough: stop at a draft with this fraction of the highest score that a shorter match could have.
    """
    best, length = NO_DRAFT, len(places)
    while length:
        place, limit = places[length - 1], limit_of(length)
        if best.score >= limit * enough:
            break  # no node counts for more than 1
        draft = follow(place, limit)
        if draft.score > best.score:
            best = draft
        if place.node.children is None or length + limit <= max_depth:
            length = _longest_with_more(places, length)
        else:
            length -= 1
    return best


def _longest_with_more(places: Sequence[Place], length: int) -> int:
    """The longest match shorter than `length` with more occurrences, 0 for none.

    Matches in between have the same occurrences as the longer one. Counts do not increase with length.
    """
    same, more = length, 0
    while same - more > 1:
        middle = (same + more) // 2
        if places[middle - 1].node.count > places[length - 1].node.count:
            more = middle
        else:
            same = middle
    return more


def follow_path(place: Place, limit: int, min_token_prob: float) -> Draft:
    """The most frequent continuation, token by token; a node's probability is the product of count / parent's count.

    The parent's count includes occurrences without a continuation, such as the end of the text itself, as in
    ArcticInference. Of equally frequent tokens the one whose first occurrence is most recent is taken.
    """
    node, offset = place
    tokens: list[int] = []
    chances: list[float] = []
    chance = 1.0
    while len(tokens) < limit:
        if node.children is None:
            start = node.next + offset
            rest = node.text[start : start + limit - len(tokens)]
            tokens += rest
            chances += [chance] * len(rest)
            break
        most = 0
        token, follower = -1, node
        for candidate, child in node.children.items():
            if child.count >= most:
                token, follower, most = candidate, child, child.count
        chance *= most / node.count
        if not most or chance < min_token_prob:
            break
        tokens.append(token)
        chances.append(chance)
        node, offset = follower, 0
    return Draft(tokens, list(range(ROOT, len(tokens) - 1)), chances)


def follow_tree(place: Place, limit: int, min_token_prob: float) -> Draft:
    """The `limit` most probable nodes below `place`, in descending order; probabilities as in `follow_path`."""
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    pushed = 0
    queue: list[tuple[float, int, int, int, Place]] = []
    here, parent, chance = place, ROOT, 1.0
    while True:
        for token, follower, reached in _followers(here, chance, min_token_prob):
            heappush(queue, (-reached, -pushed, token, parent, follower))
            pushed += 1
        if not queue or len(tokens) >= limit:
            return Draft(tokens, parents, chances)
        negative, _, token, above, here = heappop(queue)
        parent, chance = len(tokens), -negative
        tokens.append(token)
        parents.append(above)
        chances.append(chance)


def _branch() -> Node:
    """An inner node without children yet."""
    node = Node((), 0)
    node.children = {}
    return node


def _split(leaf: Node) -> None:
    """Turn a leaf that occurred again into an inner node; its first occurrence becomes a child, if its text
    continues."""
    leaf.children = {}
    if leaf.next < len(leaf.text):
        leaf.children[leaf.text[leaf.next]] = Node(leaf.text, leaf.next + 1)
    leaf.text, leaf.next = (), 0


def _followers(place: Place, chance: float, least: float) -> list[tuple[int, Place, float]]:
    """(token, place after it, probability) of each continuation of `place` (itself of probability `chance`) with at
    least probability `least`."""
    node, offset = place
    if node.children is not None:
        reached = ((token, child, chance * child.count / node.count) for token, child in node.children.items())
        return [(token, Place(child), own) for token, child, own in reached if own >= least]
    at = node.next + offset
    return [(node.text[at], Place(node, offset + 1), chance)] if at < len(node.text) and chance >= least else []
