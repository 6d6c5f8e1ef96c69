"""A target of 30 tokens whose text can be learnt by heart, with hidden states made up to fit."""

from pathlib import Path

import numpy as np
import torch

from paceline.models.architecture.config import ModelConfig
from paceline.models.base import NORMED
from paceline.models.files.bfloat16 import to_bfloat16
from paceline.models.heads.record import TargetPrint
from paceline.training.heads.conversations import Conversation, is_held_out
from paceline.training.heads.shards import TapStore
from paceline.training.heads.target import Target

VOCAB, WIDTH, LAYERS = 30, 16, 6
CONFIG = ModelConfig(
    "llama", VOCAB, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=4,
    num_key_value_heads=2, head_dim=4, norm_eps=1e-5, max_position_embeddings=64,
)  # fmt: skip
TAPS = (2, 3, NORMED)


def tiny_target(dtype: torch.dtype = torch.bfloat16) -> Target:
    """Token t is followed by 7 t + 3, almost surely: its head's rows are far apart."""
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCAB, WIDTH, generator=generator).bfloat16().to(dtype)
    about = TargetPrint("tiny", WIDTH, LAYERS, VOCAB)
    return Target(about, CONFIG, embedding, embedding, torch.ones(WIDTH), VOCAB - 1)


def conversation(start: int, held_out: bool, temperature: float = 0.0, length: int = 14) -> Conversation:
    """A prompt of 4 tokens that is, or is not, held out, and the text that follows from its last token."""
    prompts = ([i % 29, i // 29 % 29, i // 841 % 29, start % 29] for i in range(29**3))
    ids = next(prompt for prompt in prompts if is_held_out(np.array(prompt)) == held_out)
    while len(ids) < length:
        ids.append((7 * ids[-1] + 3) % 29)
    return Conversation(np.array(ids, np.int32), 4, temperature)


def states_of(one: Conversation, target: Target) -> np.ndarray:
    """[ids - 1, taps, hidden] uint16: what a target that knows the rule would have known."""
    following = torch.from_numpy(one.ids[:-1].astype(np.int64) * 7 + 3) % 29
    normed = target.head.float()[following] * 2
    own = target.embedding.float()[torch.from_numpy(one.ids[:-1].astype(np.int64))]
    return to_bfloat16(torch.stack([own, own + normed, normed], dim=1).numpy())


def tiny_store(folder: Path, target: Target, num: int = 24) -> TapStore:
    """Conversations to train on, and some that are held out, at temperatures 0 and 1."""
    store = TapStore(folder, TAPS)
    texts = [conversation(i, False, i % 2) for i in range(num)] + [conversation(i, True, i % 2) for i in range(8)]
    store.add(texts, [states_of(one, target) for one in texts])
    return store
