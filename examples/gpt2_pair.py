"""Speculative sampling as it is usually taught: GPT-2 small drafts for GPT-2 large, and the text is the large one's.

Both are taught a few sentences here, which takes a few seconds (it needs `pip install -e '.[torch,bench]'`).
The real pair: LLM("hf:openai-community/gpt2-xl", speculative={..., "model": "hf:openai-community/gpt2"})
"""

import tempfile

import torch
from tokenizers import pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

from paceline import LLM, SamplingParams

TEXT = "In a paceline, riders take turns in front and the rest draft behind them. The whole line goes faster. " * 8
LETTERS = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = GPT2Tokenizer(vocab=LETTERS, merges=[]).train_new_from_iterator([TEXT], 320)
IDS, ends = torch.tensor(tokenizer.encode(TEXT)), {"bos_token_id": 256, "eos_token_id": 256}


def taught(**sizes: int) -> str:
    """A folder with a GPT-2 of these sizes in the layout that the published ones have."""
    torch.manual_seed(0), torch.set_num_threads(1)  # more threads only wait for each other in models this small
    model = GPT2LMHeadModel(GPT2Config(n_positions=128, vocab_size=len(tokenizer), **sizes, **ends))
    optimizer, folder = torch.optim.AdamW(model.parameters(), lr=3e-3), tempfile.mkdtemp()
    for first in torch.randint(len(IDS) - 64, (100, 4)):
        batch = torch.stack([IDS[i : i + 64] for i in first])
        cross_entropy(model(batch).logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step(), optimizer.zero_grad()
    model.save_pretrained(folder), tokenizer.save_pretrained(folder)
    return folder


large, small = taught(n_layer=3, n_embd=96, n_head=3), taught(n_layer=1, n_embd=64, n_head=2)
llm = LLM(large, speculative={"method": "draft_model", "model": small, "policy": "fixed"})
for params in (SamplingParams(temperature=0, max_tokens=64), SamplingParams(temperature=1, seed=1, max_tokens=64)):
    [plain], [fast] = (each.generate("In a paceline", params) for each in (llm.drafting_with(None), llm))
    assert fast.text == plain.text
    print(repr(fast.text), f"as without drafts, in {fast.stats.acceptance_length:.2f} tokens per pass", sep="\n  ")
