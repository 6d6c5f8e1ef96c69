"""`grow`: the tree of the most probable continuations of a text, by all evidence at once. Compiled by Numba.

The chance of a token w after a text whose last n tokens occurred before, C_n times in all and c_n(w) times followed by
w, is smoothed from the shortest match to the longest (Witten and Bell's interpolation, as in PPM):

    chance_0(w) = the memory's;  chance_n(w) = (c_n(w) + trust_n * chance_{n-1}(w)) / (C_n + trust_n)

first over past outputs, and over the request's own text on top of that: what the request itself said weighs most, then
what others were told, then the memory. `trust_n` is how many occurrences a match of length n must have to weigh as much
as everything below it.

A sampled token is argmin of noise / probability, with noise that is known before the draw under the coupled rule. The
chances above are estimates of the probabilities, so tokens of little noise are likelier than these say, the more so the
hotter the law: chance / noise^b, where b would be 1 at temperature 1 if the estimates were right. Not for keeping texts
(`texts.py`) nor for reading files (`memory.py`).
"""

import math

import numpy as np

from paceline.models.compiled.kernel import entry, kernel
from paceline.models.numba_executor.noise import exponential

LONGEST_MATCH = 12
"""Matches of this length count as certain as longer ones."""
MOST_CANDIDATES = 64
"""Tokens weighed against each other after one text."""
_MOST_MATCHES = 256
_MOST_STEPS = 8192
"""Earlier places of a token that are compared with the end of the text, and those that are looked at. On 400 answers
of the default model (`benchmarks/lookups.py --past`) a quarter of the matches costs 1.5 % of the tokens per pass
without a memory and nothing beside one; four times as many give 0.6 %, and take one and a half times as long."""
_PER_CONTEXT, _PER_RACE = 8, 16
"""Most tokens that the memory gives after one context; more where the noise is known, by which improbable ones win."""
_ORDERS, _LESS = 3, 0.6
"""How many contexts the memory is asked for, the longest first, and the factor of the chances of each further one. On
the same answers one context alone, five, or any factor from 0.3 to 1 change the tokens per pass by at most 0.2 %."""
_NOISE = 0.65
"""Exponent of the noise, per unit of temperature."""
_REST, _REST_HEAT = 0.3, 1.2
"""Weight of all other tokens: rest^0.3 exp(1.2 temperature^3), where rest is what the chances leave. All three numbers
are near the best fit at five temperatures (`benchmarks/lookup_noise.py`)."""
_LEAST_REST = 1e-3
"""Least probability of all other tokens: chances are estimates, and may add up to 1."""
_UNKNOWN = 1e-4
"""Chance, before it is smoothed, of a token that only the text or past answers know; from 1e-6 to 1e-2 there is no
difference above 0.1 %."""
BLOCK = 32
"""Nodes of a memory that share one stored place of their children."""


@kernel
def _same(own, length, path, depth, back):
    """The token `back` places before the end of the text and the path drafted after it."""
    if back < depth:
        return path[depth - 1 - back]
    return own[length - 1 - (back - depth)]


@kernel
def _gather(index, own, length, path, depth, tokens_out, num, counts, totals):
    """Count what followed the end of the text in `index`; returns the number of candidates, new ones included."""
    tokens, previous, heads, begin, end = index
    for n in range(len(totals)):
        totals[n] = 0
        for c in range(MOST_CANDIDATES):
            counts[n, c] = 0
    total = length + depth
    last = _same(own, length, path, depth, 0)
    place = heads[last & (len(heads) - 1)]
    steps = matches = 0
    while place >= begin and steps < _MOST_STEPS and matches < _MOST_MATCHES:
        at = place
        place = previous[place]
        steps += 1
        if tokens[at] != last or at + 1 >= end or tokens[at + 1] < 0:
            continue
        match, follower = 1, tokens[at + 1]
        while match < LONGEST_MATCH and match < total and at - match >= begin:
            if tokens[at - match] != _same(own, length, path, depth, match):
                break
            match += 1
        which = 0
        while which < num and tokens_out[which] != follower:
            which += 1
        if which == MOST_CANDIDATES:
            continue
        if which == num:
            tokens_out[num] = follower
            num += 1
        matches += 1
        for n in range(1, match + 1):
            counts[n, which] += 1
            totals[n] += 1
    return num


@kernel
def _smooth(chances, num, counts, totals, trust):
    """Carry chances from the shortest match to the longest."""
    for n in range(1, LONGEST_MATCH + 1):
        if totals[n] == 0:
            break
        for c in range(num):
            chances[c] = (counts[n, c] + trust[n] * chances[c]) / (totals[n] + trust[n])


@kernel
def _children(memory, node):
    """Where the children of a memory's node begin and end."""
    _tokens, _chances, counts, blocks, _first, _values = memory
    start = np.int64(blocks[node // BLOCK])
    for i in range(node // BLOCK * BLOCK, node):
        start += counts[i]
    return start, start + counts[node]


@kernel
def _child(memory, node, token):
    """The node after `node` by `token`, -1 for none; after the root (-2) too."""
    tokens, _chances, _counts, _blocks, first, _values = memory
    if node == -2:
        return np.int64(first[token]) if token < len(first) else np.int64(-1)
    start, end = _children(memory, node)
    for i in range(start, end):
        if tokens[i] == token:
            return i
    return np.int64(-1)


@kernel
def _step(memory, before, token, after):
    """Nodes of the contexts of length 0 (the root), 1, 2, ... once `token` follows."""
    for n in range(len(after) - 1, 0, -1):
        node = before[n - 1]
        after[n] = _child(memory, node, token) if node != -1 else -1
    after[0] = -2


@kernel
def _remembered(memory, nodes, most, tokens_out, chances_out):
    """Candidates of the longest contexts that the memory knows, up to `most` of each; returns their number."""
    tokens, chances, _counts, _blocks, _first, values = memory
    num, orders, weight = 0, 0, 1.0
    for n in range(len(nodes) - 1, 0, -1):
        if nodes[n] < 0:
            continue
        start, end = _children(memory, nodes[n])
        if start == end:
            continue
        for i in range(start, min(end, start + most)):
            which = 0
            while which < num and tokens_out[which] != tokens[i]:
                which += 1
            if which == num:
                tokens_out[num] = tokens[i]
                chances_out[num] = values[chances[i]] * weight
                num += 1
        orders += 1
        weight *= _LESS
        if orders == _ORDERS:
            break
    return num


@kernel
def _candidates(own_index, past_index, memory, trust, path, depth, nodes, most, work):
    """What may follow the text and the path; returns the number of candidates.

    Args:
        most: of the memory, for each context.
    """
    tokens_out, chances, own_counts, own_totals, past_counts, past_totals = work
    own, length = own_index[0], own_index[4]
    known = _remembered(memory, nodes, most, tokens_out, chances)
    num = _gather(own_index, own, length, path, depth, tokens_out, known, own_counts, own_totals)
    num = _gather(past_index, own, length, path, depth, tokens_out, num, past_counts, past_totals)
    for c in range(known, num):
        chances[c] = _UNKNOWN
    _smooth(chances, num, past_counts, past_totals, trust[1])
    _smooth(chances, num, own_counts, own_totals, trust[0])
    return num


@kernel
def _race(tokens, chances, num, key, temperature):
    """Turn chances into those given the noise of the draw; 0 at temperatures so high that nothing can be guessed."""
    rest, power = 1.0, _NOISE * temperature
    for c in range(num):
        rest -= chances[c]
        chances[c] /= exponential(tokens[c], key) ** power
    total = max(rest, _LEAST_REST) ** _REST * math.exp(_REST_HEAT * temperature**3)
    for c in range(num):
        total += chances[c]
    for c in range(num):
        chances[c] = chances[c] / total if total < math.inf else 0.0


@kernel
def _path_to(node, drafted, parents, path):
    """Tokens from the root to `node` (-1 is the root); returns their number."""
    depth, at = 0, node
    while at >= 0:
        depth, at = depth + 1, parents[at]
    at = node
    for i in range(depth - 1, -1, -1):
        path[i] = drafted[at]
        at = parents[at]
    return depth


@kernel
def _offer(tokens, chances, num, node, reached, least, branches, queue, queued):
    """Queue the candidates that are likely enough, or the best one where drafts are chains; the queue's new length."""
    queue_tokens, queue_parents, queue_chances = queue
    best = -1
    for c in range(num):
        if chances[c] * reached < least:
            continue
        if not branches:
            best = c if best < 0 or chances[c] > chances[best] else best
        elif queued < len(queue_tokens):
            queue_tokens[queued], queue_parents[queued] = tokens[c], node
            queue_chances[queued] = chances[c] * reached
            queued += 1
    if best >= 0:
        queue_tokens[0], queue_parents[0], queue_chances[0] = tokens[best], node, chances[best] * reached
        queued = 1
    return queued


@kernel
def _take(queue, queued, at, drafted, parents, reached):
    """Move the most probable of the queue to the tree as node `at`."""
    queue_tokens, queue_parents, queue_chances = queue
    best = 0
    for i in range(1, queued):
        if queue_chances[i] > queue_chances[best]:
            best = i
    drafted[at], parents[at], reached[at] = queue_tokens[best], queue_parents[best], queue_chances[best]
    queue_tokens[best] = queue_tokens[queued - 1]
    queue_parents[best] = queue_parents[queued - 1]
    queue_chances[best] = queue_chances[queued - 1]


@entry
def grow(
    own_index, past_index, memory, trust, budget, max_depth, least, branches, keys, temperature, tree, queue, nodes,
    path, work,
):  # fmt: skip
    """Grow a tree node by node, always by the one most likely to be reached; returns the number of nodes.

    Args:
        own_index, past_index: (tokens, previous, heads, begin, end), see `TextIndex`; the own text has a token.
        memory: (tokens, chances, counts, blocks, first, values), see `Memory.arrays`.
        trust: [2, LONGEST_MATCH + 1] of matches in the own text and in past outputs.
        budget, max_depth: most nodes and levels.
        least: nodes with a smaller chance to be reached are not proposed.
        branches: False grows a chain.
        keys: [levels] uint64, of the noise of the target's draws after the text; empty where it is unknown or nothing
            is drawn.
        temperature: of the request.
        tree: (tokens, parents, chances to be reached), written; a parent of -1 is the root.
        queue, nodes [budget + 2, orders], path, work: room to work in, see `Room`.
    """
    drafted, parents, reached = tree
    own, length = own_index[0], own_index[4]
    last = nodes.shape[0] - 1
    for n in range(nodes.shape[1]):
        nodes[0, n] = -1
    nodes[0, 0] = -2
    for i in range(max(0, length - nodes.shape[1] + 1), length):
        _step(memory, nodes[0], own[i], nodes[last])
        for n in range(nodes.shape[1]):
            nodes[0, n] = nodes[last, n]
    size, queued, node, chance = 0, 0, -1, 1.0
    while True:
        depth = _path_to(node, drafted, parents, path)
        if depth < max_depth:
            is_raced = depth < len(keys)
            most = _PER_RACE if is_raced else _PER_CONTEXT
            num = _candidates(own_index, past_index, memory, trust, path, depth, nodes[node + 1], most, work)
            if is_raced:
                _race(work[0], work[1], num, keys[depth], temperature)
            queued = _offer(work[0], work[1], num, node, chance, least, branches, queue, queued)
        if queued == 0:
            return size
        _take(queue, queued, size, drafted, parents, reached)
        queued -= 1
        node, chance = size, reached[size]
        size += 1
        if size == budget:
            return size
        _step(memory, nodes[parents[node] + 1], drafted[node], nodes[node + 1])
