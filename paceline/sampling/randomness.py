"""Counter-based randomness: a draw depends on its key, never on the order of calls.

Every coin and every draw is keyed by (request seed, stream, absolute position, purpose, node), so a request's output
does not depend on the other requests in the batch, on chunk sizes or on preemption. `Randomness` is an interface, so
that the exact tests can substitute an enumerator and sum over every outcome. Not for rules that decide what to draw
(`verify.py` and others), and not for secrets: the generator is not cryptographic.
"""

import secrets
from typing import Any, Literal, Protocol

import numpy as np

from paceline.sampling.law import Law

Purpose = Literal["target", "draft", "accept"]
"""``target``: the target's draw (bonus, recovered, plain); ``draft``: a drafter's draw; ``accept``: a coin."""

ROOT = -1
"""Node number of a tree's root, the parent of its first nodes, and of a draw that belongs to no drafted node."""

_PURPOSE_CODES: dict[Purpose, int] = {"target": 1, "draft": 2, "accept": 3}
_MASK = (1 << 64) - 1
INCREMENT = 0x9E3779B97F4A7C15  # splitmix64: odd, 2^64 over the golden ratio
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_AT_ONCE = 64
"""Target keys of as many positions are computed together: in Python one takes as long as ten of them."""


class Randomness(Protocol):
    """Source of the coins and draws of one request."""

    def coin(self, probability: Any, position: int, node: int) -> bool:
        """True with `probability` (clipped to [0, 1]); purpose ``accept``."""
        ...

    def draw(self, law: Law, position: int, purpose: Purpose, node: int = ROOT) -> int:
        """A token of `law` by an exponential race, argmin of noise(token) / prob(token).

        Draws from two laws under one key use the same noise, which is the coupling of the coupled rule (Daliri et al.
        2024). Plain decoding draws under ("target", ROOT) and therefore generates the same text.
        """
        ...

    def exponentials(self, tokens: np.ndarray, position: int, purpose: Purpose, node: int = ROOT) -> np.ndarray:
        """[k] the noise of each of `tokens` in a draw under this key; it does not depend on the law."""
        ...


def fresh_seed() -> int:
    """A random seed in [0, 2^63) from the operating system, for a request without one."""
    return secrets.randbits(63)


class CounterRandomness:
    """`Randomness` from a hash of its key: no state, so the order of calls does not matter.

    Args:
        seed: any integer; seeds that agree modulo 2^64 give the same randomness.
        stream: 0 is the noise that plain sampling uses; every other number gives independent noise.

    The hash is splitmix64 (Steele, Lea and Flood 2014): its finaliser absorbs the words of the key one by one, and
    token t takes output number t of the stream that the key starts.
    """

    def __init__(self, seed: int, stream: int = 0) -> None:
        self.seed = seed
        self._base = _absorb(_absorb(0, seed), stream) if stream else _absorb(0, seed)
        self._target_keys: tuple[int, list[int]] = 0, []

    def coin(self, probability: Any, position: int, node: int) -> bool:
        """True when `uniform(position, node)` is below `probability`."""
        return bool(self.uniform(position, node) < probability)

    def uniform(self, position: int, node: int) -> float:
        """The 53-bit uniform number in [0, 1) of the coin at (position, node)."""
        return (self.key(position, "accept", node) >> 11) * 2.0**-53

    def draw(self, law: Law, position: int, purpose: Purpose, node: int = ROOT) -> int:
        """A token of `law` by an exponential race; a one-hot law uses no noise.

        The last digit of the logarithm may differ between processors; that changes a draw with probability of about
        1e-12.
        """
        if law.is_one_hot:
            return int(law.tokens[0])
        noise = self.exponentials(law.tokens, position, purpose, node)
        with np.errstate(over="ignore"):  # overflow to infinity: such an improbable token never wins
            noise /= law.probs
        return int(law.tokens[np.argmin(noise)])

    def exponentials(self, tokens: np.ndarray, position: int, purpose: Purpose, node: int = ROOT) -> np.ndarray:
        """[k] float64 standard exponential noise of each of `tokens` under one key."""
        bits = _stream(self.key(position, purpose, node), tokens)
        bits >>= np.uint64(12)
        uniforms = bits.astype(np.float64)
        # 52 random bits plus one half: never 0 or 1, so the noise is finite and positive.
        uniforms += 0.5
        uniforms *= 2.0**-52
        np.log(uniforms, out=uniforms)
        return np.negative(uniforms, out=uniforms)

    def key(self, position: int, purpose: Purpose, node: int) -> int:
        """The 64-bit key of a draw or coin; the noise of a draw is a function of it and of the token."""
        return _absorb(_absorb(_absorb(self._base, position), _PURPOSE_CODES[purpose]), node)

    def target_key(self, position: int) -> int:
        """The key of the target's own draw at a position: `key` with purpose ``target`` and no node."""
        first, keys = self._target_keys
        if not 0 <= position - first < len(keys):
            positions = np.arange(position, position + _AT_ONCE).astype(np.uint64)
            of_purpose = _absorbed(_absorbed(np.uint64(self._base), positions), np.uint64(_PURPOSE_CODES["target"]))
            first, keys = self._target_keys = position, _absorbed(of_purpose, np.uint64(ROOT & _MASK)).tolist()
        return keys[position - first]


def _absorbed(keys: Any, words: Any) -> np.ndarray:
    """`_absorb` of uint64 numbers, at least one of them an array."""
    state = keys ^ words
    state += np.uint64(INCREMENT)
    return _mixed(state)


def _absorb(key: int, word: int) -> int:
    """The hash of `key` and one more word; for a given `key`, different words give different hashes."""
    return _mix(((key ^ (word & _MASK)) + INCREMENT) & _MASK)


def _mix(state: int) -> int:
    """splitmix64's finaliser on a Python integer below 2^64."""
    state = ((state ^ (state >> 30)) * MULTIPLIERS[0]) & _MASK
    state = ((state ^ (state >> 27)) * MULTIPLIERS[1]) & _MASK
    return state ^ (state >> 31)


def _stream(key: int, indices: np.ndarray) -> np.ndarray:
    """[k] uint64: the outputs numbered `indices` of splitmix64 started at `key`."""
    state = (indices + 1).astype(np.uint64)
    state *= np.uint64(INCREMENT)
    state += np.uint64(key)
    return _mixed(state)


def _mixed(state: np.ndarray) -> np.ndarray:
    """`_mix` of uint64 numbers, in place."""
    state ^= state >> np.uint64(30)
    state *= np.uint64(MULTIPLIERS[0])
    state ^= state >> np.uint64(27)
    state *= np.uint64(MULTIPLIERS[1])
    state ^= state >> np.uint64(31)
    return state
