"""Bodies of requests that are wrong in one or two places, for tests and for the soak program."""

import json
import random
from collections.abc import Mapping
from typing import Any

WRONG = [None, -1, 1e308, -1e308, 2**63, 0.5, "x", "", [], [[]], {}, {"a": 1}, True, ["\u0000"], [None]]
FIELDS = [
    "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "logit_bias", "seed",
    "logprobs", "echo", "stream", "stream_options", "speculative", "prediction", "response_format",
    "structured_outputs", "paceline", "tools", "bad_words", "stop_token_ids", "min_tokens", "presence_penalty",
    "repetition_penalty", "priority", "timeout", "prompt_logprobs", "logprobs_mode", "guided_regex", "user",
    "model", "cache_salt",
]  # fmt: skip


def mutated(rng: random.Random, good: Mapping[str, Any]) -> bytes:
    """The body `good`, wrong in one or two places, as JSON or as bytes."""
    body = {**good} | {rng.choice(FIELDS): rng.choice(WRONG) for _ in range(rng.randint(1, 2))}
    data = bytearray(json.dumps(body).encode())
    if rng.random() < 0.3:
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(1, len(data))] if rng.random() < 0.1 else data)
