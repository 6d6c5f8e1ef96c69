"""Cost and gain of decodes piggybacked on prefill chunks, in closed form (Agrawal et al. 2023, SARATHI).

A pass reads every weight once. A pass of decodes alone is bound by that reading; in a pass with a prefill chunk they
cost little more than their own arithmetic. With Fractions as arguments, results are Fractions. Not for the largest
batch (`capacity.py`), nor for choosing a token budget under a latency target (`scheduling/budget.py`).
"""

from dataclasses import dataclass
from fractions import Fraction

from paceline.errors import InvalidParameter
from paceline.theory.checks import Number, check_cost, check_count, check_positive


def perfect_coverage(chunk: int, batch: int) -> Fraction:
    """Prompt tokens per output token at which every chunk carries all the decodes it can: C / (B - 1).

    Args:
        chunk: C, prompt tokens of a pass.
        batch: B, requests of a pass; one of them is being prefilled, B - 1 decode.
    """
    check_count("chunk", chunk, least=1)
    check_count("batch", batch, least=2)
    return Fraction(chunk, batch - 1)


def aligned_chunk(rows: int, batch: int) -> int:
    """Prompt tokens that fill a pass of `rows` beside B - 1 decodes: rows - (B - 1).

    `rows` is a multiple of the tile of the matrix product: one row more costs a whole tile.

    Raises:
        InvalidParameter: the decodes leave no row.
    """
    check_count("batch", batch, least=1)
    if rows < batch:
        problem = f"{rows} rows hold no chunk beside {batch - 1} decodes"
        raise InvalidParameter("rows", problem, f"give at least {batch}")
    return rows - (batch - 1)


def num_chunks(prompt_tokens: int, chunk: int) -> int:
    """Chunks of a prompt; all but the last are full."""
    check_count("prompt_tokens", prompt_tokens, least=1)
    check_count("chunk", chunk, least=1)
    return -(-prompt_tokens // chunk)


def kv_loads(prompt_tokens: int, chunk: int) -> int:
    """Tokens whose keys and values are read while a prompt is prefilled in chunks; `prompt_tokens` in one piece.

    Chunk i reads everything up to its own end, so the first of N chunks is read N times.
    """
    count = num_chunks(prompt_tokens, chunk)
    return chunk * count * (count - 1) // 2 + prompt_tokens


def gain_of_decodes(
    ratio: Number, per_prefill_token: Number, per_decode: Number, decode_speedup: Number, chunk_loss: Number = 0
) -> Number:
    """(R p + d) / (R p (1 + l) + d / s): the gain in throughput where decodes get s times as fast and prompts slower.

    It relates the last two columns of SARATHI's table 4. `PassTimes.gain` computes the same from passes, for every
    ratio; at perfect coverage both agree.

    Args:
        ratio: R, prompt tokens per output token.
        per_prefill_token, per_decode: p and d, when prompts and decodes run apart, in one unit.
        decode_speedup: s.
        chunk_loss: l, relative slowdown of prompts by chunks.
    """
    check_positive("ratio", ratio)
    check_positive("decode_speedup", decode_speedup)
    check_cost("chunk_loss", chunk_loss)
    prefill = ratio * per_prefill_token
    return (prefill + per_decode) / (prefill * (1 + chunk_loss) + per_decode / decode_speedup)


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds, in any unit, of the three kinds of passes (table 2 of the paper), and what follows from them.

    Attributes:
        chunk: prompt tokens of a prefill-only and of a decode-maximal pass.
        batch: decodes of a decode-only pass; a decode-maximal one carries one less.
        prefill_only: a chunk alone.
        decode_only: the decodes alone.
        decode_maximal: the chunk with its piggybacked decodes.
    """

    chunk: int
    batch: int
    prefill_only: Number
    decode_only: Number
    decode_maximal: Number

    def __post_init__(self) -> None:
        check_count("chunk", self.chunk, least=1)
        check_count("batch", self.batch, least=2)
        for field in ("prefill_only", "decode_only", "decode_maximal"):
            check_positive(field, getattr(self, field))

    @property
    def per_prefill_token(self) -> Number:
        """Seconds per prompt token of a prefill-only pass."""
        return self.prefill_only / self.chunk

    @property
    def per_decode(self) -> Number:
        """Seconds per token of a decode-only pass."""
        return self.decode_only / self.batch

    @property
    def per_riding_decode(self) -> Number:
        """Seconds that a decode adds to a chunk's pass."""
        return (self.decode_maximal - self.prefill_only) / (self.batch - 1)

    @property
    def decode_speedup(self) -> Number:
        """`per_decode` over `per_riding_decode`; infinite when the latter is 0."""
        riding = self.per_riding_decode
        return self.per_decode / riding if riding > 0 else float("inf")

    @property
    def best_ratio(self) -> Fraction:
        """Prompt tokens per output token with the largest `gain`: `perfect_coverage`."""
        return perfect_coverage(self.chunk, self.batch)

    def throughput(self, ratio: Number) -> Number:
        """Tokens (prompt and output) per second, decode-maximal, with `ratio` prompt tokens per output token.

        For one output token there are ratio / C chunks, each with up to B - 1 decodes. Decodes without a chunk run in
        decode-only passes, chunks without decodes in prefill-only passes.
        """
        check_positive("ratio", ratio)
        chunks = ratio / self.chunk
        riding = min(Fraction(1), chunks * (self.batch - 1))
        mixed = riding / (self.batch - 1)
        alone = (chunks - mixed) * self.prefill_only + (1 - riding) * self.per_decode
        return (ratio + 1) / (mixed * self.decode_maximal + alone)

    def separate_throughput(self, ratio: Number, chunk_loss: Number = 0) -> Number:
        """The same when prompts and decodes never share a pass, and prompts run in one piece.

        Args:
            chunk_loss: relative slowdown of prompts by chunks of `chunk`.
        """
        check_positive("ratio", ratio)
        check_cost("chunk_loss", chunk_loss)
        return (ratio + 1) / (ratio * self.per_prefill_token / (1 + chunk_loss) + self.per_decode)

    def gain(self, ratio: Number, chunk_loss: Number = 0) -> Number:
        """`throughput` over `separate_throughput`."""
        return self.throughput(ratio) / self.separate_throughput(ratio, chunk_loss)
