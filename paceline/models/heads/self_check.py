"""Checks that a head is read as it was trained, by how often its first drafted token is the target's argmax.

Wrong taps, scales or draft vocabularies leave shapes valid but draft badly. So the share of correct tokens on a stored
answer of 64 tokens is compared with the share in the head's card. It cannot see what changes later tokens of a draft
only (`norm_output`), nor mistakes that cost little: on the default model, taps one layer off. Not a benchmark
(`paceline bench`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.base import CausalLM, pages_for, slot_of
from paceline.models.fields import is_number, is_whole
from paceline.models.heads.nets import (
    AutoregressiveNet,
    BlockNet,
    BlockOfRows,
    HalfAutoregressiveNet,
    HeadNet,
    StepNet,
)
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.rows import Part, build_rows
from paceline.models.text.tokenizer import Tokenizer

KEY = "check"
"""Entry of a card that holds the tokens and the share."""
NUM_TOKENS = 64
_QUESTION = "Explain why the sky is blue."
_LEAST_SHARE = 0.8
"""Smallest share, relative to the card's, that passes. The shipped heads reach 0.90 to 1.08 with weights of any dtype;
with states of wrong layers, in a wrong order, or without the scale of their embeddings 0.20 to 0.78."""


_MOST_TOKENS = 4096
_REMEDY = "get the head's own config.json"


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """Shares of first drafted tokens that equal the target's argmax: measured now, and expected by the card."""

    measured: float
    expected: float

    @property
    def passed(self) -> bool:
        """Whether the measured share is at least `_LEAST_SHARE` of the expected one."""
        return self.measured >= _LEAST_SHARE * self.expected

    def __str__(self) -> str:
        verdict = "as expected" if self.passed else "far too low: taps, norms or weights are not those of its training"
        return (
            f"first drafted token right for {self.measured:.1%} of stored tokens, card {self.expected:.1%}: {verdict}"
        )


def run_self_check(target: CausalLM, net: HeadNet, card: Mapping[str, object]) -> SelfCheck | None:
    """Run the check in the `card` of a head; None where it stores no tokens.

    This takes one pass of the target over the stored tokens, and the passes of the head.

    Raises:
        InvalidParameter: the card's entry is damaged.
    """
    if card.get(KEY) is None:
        return None
    tokens, num_prompt_tokens, expected = _stored(card, net.record.config)
    return SelfCheck(first_share(target, net, tokens, num_prompt_tokens), expected)


def check_entry(record: HeadRecord) -> list[int] | None:
    """The text in a head's card; None without one. Raises InvalidParameter where the entry is damaged."""
    return None if record.card.get(KEY) is None else _stored(record.card, record.config)[0]


def make_check(target: CausalLM, net: HeadNet, tokens: Sequence[int], num_prompt_tokens: int) -> dict[str, object]:
    """The entry `KEY` for the card of a head.

    Args:
        tokens: a prompt and text that the target generated. The card is public; `own_text` of `own_opening` contains no
            user data.
        num_prompt_tokens: length of the prompt, whose tokens are not counted.
    """
    share = first_share(target, net, tokens, num_prompt_tokens)
    return {"tokens": [int(one) for one in tokens], "prompt_tokens": num_prompt_tokens, "acceptance": round(share, 4)}


def _stored(card: Mapping[str, object], config: HeadConfig) -> tuple[list[int], int, float]:
    """(tokens, number of them that are the prompt, share) of a card."""
    vocab_size, least = config.target.vocab_size, config.block_tokens + 1
    entry = card[KEY] if isinstance(card[KEY], Mapping) else {}
    assert isinstance(entry, Mapping)
    tokens, share, num_prompt = entry.get("tokens"), entry.get("acceptance"), entry.get("prompt_tokens", 0)
    if not isinstance(tokens, list) or not least <= len(tokens) <= _MOST_TOKENS or not all(map(is_whole, tokens)):
        raise InvalidParameter(f"card.{KEY}.tokens", f"is no list of {least} to {_MOST_TOKENS} token ids", _REMEDY)
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        raise InvalidParameter(f"card.{KEY}.tokens", f"leaves the target's vocabulary of {vocab_size}", _REMEDY)
    if not is_whole(num_prompt) or not 0 <= num_prompt <= len(tokens) - least:
        raise InvalidParameter(f"card.{KEY}.prompt_tokens", f"{num_prompt!r} is no part of the tokens", _REMEDY)
    if not is_number(share) or not 0 <= share <= 1:
        raise InvalidParameter(f"card.{KEY}.acceptance", f"{share!r} is no share from 0 to 1", _REMEDY)
    return tokens, num_prompt, float(share)


def own_opening(tokenizer: Tokenizer) -> list[int]:
    """Token ids of a fixed question, in the model's chat template if it has one."""
    if tokenizer.has_chat_template:
        return tokenizer.encode_chat([{"role": "user", "content": _QUESTION}])
    return tokenizer.encode(_QUESTION)


def own_text(target: CausalLM, prompt: Sequence[int], num_tokens: int = NUM_TOKENS) -> list[int]:
    """`prompt` and its greedy continuation by `num_tokens` tokens, decoded one pass each."""
    tokens, num_pages = list(prompt), pages_for(len(prompt) + num_tokens)
    cache, start = target.new_cache(num_pages), 0
    for _ in range(num_tokens):
        rows = build_rows([Part(range(num_pages), start, tokens[start:], logits="last")])
        start = len(tokens)
        tokens.append(int(target.forward(rows, cache).logits[0].argmax()))
    return tokens


def first_share(target: CausalLM, net: HeadNet, tokens: Sequence[int], num_prompt_tokens: int = 0) -> float:
    """Share of positions after the prompt where the first token of a greedy draft is the target's argmax.

    Every draft starts from the target's hidden states, so this is the acceptance rate of the first position at
    temperature 0.
    """
    wanted, states = target_states(target, tokens, net.record.config.taps)
    if isinstance(net, HalfAutoregressiveNet):
        logits = _half_autoregressive(net, tokens, states)
    elif isinstance(net, AutoregressiveNet):
        logits = _autoregressive(net, tokens, states)
    elif isinstance(net, BlockNet):
        logits = _block(net, tokens, states)
    else:
        logits = _step(net, tokens, states)
    drafted = logits.argmax(axis=1)
    ids = net.record.draft_ids
    is_right = (drafted if ids is None else ids[drafted]) == wanted[len(wanted) - len(drafted) :]
    return float(is_right[max(0, len(is_right) - len(tokens) + num_prompt_tokens) :].mean())


def target_states(target: CausalLM, tokens: Sequence[int], taps: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The target's argmax after each of `tokens` [n], and its concatenated taps there [n, taps * width]."""
    num_pages = pages_for(len(tokens))
    rows = build_rows([Part(range(num_pages), 0, tokens)])
    output = target.forward(rows, target.new_cache(num_pages), tuple(dict.fromkeys(taps)))
    return output.logits.argmax(axis=1), np.concatenate([output.taps[tap] for tap in taps], axis=1)


def _autoregressive(net: AutoregressiveNet, tokens: Sequence[int], states: np.ndarray) -> np.ndarray:
    """Logits [n - 1, draft vocab]: row p reads the token at p + 1 and the state at p."""
    num_pages = pages_for(len(tokens))
    rows = build_rows([Part(range(num_pages), 0, tokens[1:])])
    return net.forward(rows, net.project(states[:-1]).copy(), net.new_cache(num_pages)).logits


def _half_autoregressive(net: HalfAutoregressiveNet, tokens: Sequence[int], states: np.ndarray) -> np.ndarray:
    """Logits [n - k, draft vocab]: of the first row of each k rows in sequence; rows are as for `_autoregressive`."""
    size, places = net.record.config.block_tokens, np.arange(len(tokens) - 1)
    num_pages = pages_for(len(tokens))
    cache, slots = net.new_cache(num_pages), slot_of(np.arange(num_pages), places).astype(np.int32)
    before = np.concatenate([[-1], slots[:-1]]).astype(np.int32)
    net.extend(np.asarray(tokens[1:], np.int32), net.project(states[:-1]), places, slots, before, cache)
    ends = range(size, len(places) + 1)
    blocks = [BlockOfRows(slots[end - size : end], places[end - size : end], slots[:end]) for end in ends]
    return net.draft(blocks, cache).logits[::size]


def _block(net: BlockNet, tokens: Sequence[int], states: np.ndarray) -> np.ndarray:
    """Logits [n - 1, draft vocab] of the first drafted token of a block after every token but the first."""
    config = net.record.config
    size, first = config.block_size, int(not config.sample_from_anchor)
    num_pages = pages_for(len(tokens) + size)
    cache, pages = net.new_cache(num_pages), np.arange(num_pages)
    masks = [config.mask_token_id or 0] * (size - 1)
    logits = []
    for last in range(1, len(tokens)):
        before = np.array([last - 1], np.int32)
        net.inject(states[last - 1 : last], before, slot_of(pages, before).astype(np.int32), cache)
        rows = build_rows([Part(range(num_pages), last, [tokens[last], *masks])])
        keys = np.full(size, last + size, np.int32)
        output = net.forward(replace(rows, natural_lengths=keys, num_keys=keys), cache)
        logits.append(output.logits[first] + net.bias(np.array([tokens[last]], np.int32))[0])
    return np.stack(logits)


def _step(net: StepNet, tokens: Sequence[int], states: np.ndarray) -> np.ndarray:
    """Logits [n - 1, draft vocab] from the state at p and the token at p + 1."""
    logits, _ = net.step(0, net.begin(states[:-1]), np.asarray(tokens[1:], np.int32))
    return logits
