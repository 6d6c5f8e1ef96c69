"""The interface of benchmarks to other engines."""

from typing import Protocol

from paceline import SamplingParams


class Peer(Protocol):
    """An engine that answers one prompt."""

    name: str

    def run(self, prompt_ids: list[int], params: SamplingParams) -> dict:
        """Rates of one answer: tokens, tokens_per_second (from the first token), first_token_seconds."""
        ...


class LoadPeer(Protocol):
    """An engine that answers many prompts at once."""

    def run_many(self, prompts: list[list[int]], max_tokens: int) -> int:
        """Answer all `prompts` greedily with `max_tokens` tokens each, ignoring the end; returns the tokens in all."""
        ...

    def close(self) -> None:
        """Let go of memory and processes."""
        ...


def rates(tokens: int, started: float, first: float, last: float) -> dict:
    """What `Peer.run` returns, from moments in seconds."""
    decoding = last - first
    return {
        "tokens": tokens,
        "tokens_per_second": (tokens - 1) / decoding if tokens > 1 and decoding else 0.0,
        "first_token_seconds": first - started,
    }
