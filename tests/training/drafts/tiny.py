"""A random target of three layers, texts of its own with its states, and drafts that begin with one of its layers."""

from pathlib import Path

import numpy as np

from paceline.models.base import NORMED
from paceline.models.files.bfloat16 import to_bfloat16
from paceline.models.torch_executor import TorchModel
from paceline.training.drafts.net import DraftNet
from paceline.training.drafts.texts import teacher_of
from paceline.training.heads.conversations import Conversation, is_held_out
from paceline.training.heads.shards import TapStore
from tests.fakes import RandomCheckpoint, small_config

CONFIG = small_config(vocab_size=30, hidden_size=32, intermediate_size=48, num_attention_heads=4, head_dim=8)
TARGET = RandomCheckpoint(CONFIG, seed=4)
LENGTH, PROMPT = 14, 4


def teacher():
    return teacher_of(TorchModel(TARGET))


def net(layers=(0,)) -> DraftNet:
    """With tables in float32, so that sums can be compared."""
    found = DraftNet(TARGET, layers)
    found.embedding, found.head = found.embedding.float(), found.head.float()
    return found


def tiny_store(folder: Path, num: int = 8, held_out: int = 4, own_text: bool = False) -> TapStore:
    """Random tokens read by the target, or its greedy answers; half of the texts are called greedy, some held out."""
    rng, all_ids = np.random.default_rng(0), []
    for i in range(num + held_out):
        ids = rng.integers(0, 30, LENGTH).astype(np.int32)
        while is_held_out(ids[:PROMPT]) != (i >= num):
            ids[:PROMPT] = rng.integers(0, 30, PROMPT)
        all_ids.append(ids)
    for place in range(PROMPT, LENGTH) if own_text else ():
        states = teacher()([ids[:place] for ids in all_ids])[place - 1 :: place].float().numpy()
        best = (states @ TARGET.tensor("model.embed_tokens.weight").T).argmax(-1)
        for ids, token in zip(all_ids, best, strict=True):
            ids[place] = token
    texts = [Conversation(ids, PROMPT, float(i % 2)) for i, ids in enumerate(all_ids)]
    store = TapStore(folder, (0, NORMED))
    states = teacher()([one.ids[:-1] for one in texts]).float().numpy().reshape(len(texts), LENGTH - 1, 1, -1)
    store.add(texts, [to_bfloat16(np.repeat(one, 2, axis=1)) for one in states])
    return store
