"""The torch executor against transformers, on tiny random checkpoints of each family's own config class."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from paceline.errors import InvalidParameter
from paceline.models.base import NORMED, PAGE_SIZE
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.torch_executor import TorchModel

from .tiny import VOCAB, chain_rows, random_tokens, tree_rows

FAMILIES = [
    "llama", "llama-biased", "llama3", "llama-linear", "mistral", "qwen2", "qwen2-yarn", "qwen3", "qwen2_moe",
    "qwen3_moe", "mixtral", "gemma", "gemma2", "gemma3_text", "phi3", "phi3-long", "smollm3", "olmo2", "granite",
    "gpt2", "olmo3", "olmoe", "ministral3", "exaone4", "exaone4-small", "glm", "glm4", "seed_oss", "ernie4_5",
    "starcoder2", "stablelm", "gpt_oss",
    "cohere", "cohere2", "gpt_neox", "gpt_neox-serial",
    "qwen2_5_vl_text", "qwen3_vl_text", "granitemoehybrid-attention",
    "glm4_moe", "glm4_moe-large", "dots1", "dots1-grouped", "ernie4_5_moe",
    "deepseek_v2", "deepseek_v2-greedy", "deepseek_v3", "glm4_moe_lite", "minicpm3",
    "qwen3_vl_moe_text",
    "lfm2", "lfm2-adjusted", "qwen3_5_text", "qwen3_5_text-even", "lfm2_moe", "qwen3_next", "qwen3_5_moe_text",
    "gemma4_text", "gemma4_text-large", "gemma4_text-mixture",
    "granitemoe", "granitemoehybrid", "granitemoehybrid-mixture", "minimax_m2",
    "arcee", "nemotron", "jais2", "hunyuan_v1_dense", "nemotron_h", "nemotron_h-mixture",
]  # fmt: skip
TOLERANCE = 1e-4
PAGES = (3, 0, 5)
"""Out of order, so that a slot is not a position."""


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tiny_models):
    folder, theirs = tiny_models[request.param]
    return TorchModel(SafetensorsCheckpoint(folder)), theirs


@pytest.fixture(scope="module")
def llama(tiny_models):
    return TorchModel(SafetensorsCheckpoint(tiny_models["llama"][0]))


def expected(theirs, tokens):
    with torch.no_grad():
        return theirs(torch.tensor([tokens])).logits[0].numpy()


def close(ours, want):
    np.testing.assert_allclose(ours, want, atol=TOLERANCE, rtol=0)


def test_prefill(pair):
    model, theirs = pair
    tokens = random_tokens(40)
    close(model.forward(chain_rows([(tokens, 0, PAGES)]), model.new_cache(6)).logits, expected(theirs, tokens))


def test_the_models_logits_are_far_apart(pair):
    """The tolerance means something: another token moves the last logits a hundred times further."""
    _, theirs = pair
    tokens = random_tokens(40)
    changed = [*tokens[:32], (tokens[32] + 1) % VOCAB, *tokens[33:]]
    assert np.abs(expected(theirs, tokens)[-1] - expected(theirs, changed)[-1]).max() > 100 * TOLERANCE


def test_chunked_prefill_then_cached_decode(pair):
    model, theirs = pair
    tokens, cache = random_tokens(40, seed=1), model.new_cache(6)
    parts = [(0, 13), (13, 17), (17, 36), *((i, i + 1) for i in range(36, 40))]
    logits = [model.forward(chain_rows([(tokens[a:b], a, PAGES)]), cache).logits for a, b in parts]
    close(np.concatenate(logits), expected(theirs, tokens))


def test_requests_share_a_pass(pair):
    model, theirs = pair
    first, second, cache = random_tokens(20, seed=2), random_tokens(9, seed=3), model.new_cache(6)
    model.forward(chain_rows([(first[:19], 0, (4, 1))]), cache)
    logits = model.forward(chain_rows([(first[19:], 19, (4, 1)), (second, 0, (2,))]), cache).logits
    close(logits[0], expected(theirs, first)[-1])
    close(logits[1:], expected(theirs, second))


def test_every_node_of_a_tree_is_its_path_run_alone(pair):
    model, theirs = pair
    prefix, cache = random_tokens(21, seed=4), model.new_cache(6)
    model.forward(chain_rows([(prefix, 0, PAGES)]), cache)
    tokens, parents = [5, 9, 9, 3, 8, 1], [-1, -1, 0, 0, 1, 2]
    logits = model.forward(tree_rows(tokens, parents, len(prefix), PAGES, first_slot=4 * PAGE_SIZE), cache).logits
    for node in range(len(tokens)):
        path, at = [], node
        while at >= 0:
            path.insert(0, tokens[at])
            at = parents[at]
        close(logits[node], expected(theirs, prefix + path)[-1])


def test_moving_an_accepted_branch_leaves_the_cache_of_a_fresh_prefill(llama):
    prefix, tokens, parents = random_tokens(21, seed=5), [5, 9, 9, 3], [-1, -1, 0, 2]
    cache, fresh = llama.new_cache(6), llama.new_cache(6)
    llama.forward(chain_rows([(prefix, 0, PAGES)]), cache)
    llama.forward(tree_rows(tokens, parents, 21, PAGES, first_slot=4 * PAGE_SIZE), cache)
    slots = [PAGES[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in range(24)]
    cache.move([4 * PAGE_SIZE + node for node in (0, 2, 3)], slots[21:])
    llama.forward(chain_rows([([*prefix, 5, 9, 3], 0, PAGES)]), fresh)
    for ours, want in zip(cache.read(slots), fresh.read(slots), strict=True):
        np.testing.assert_allclose(ours, want, atol=1e-5)


def test_move_reads_before_it_writes(llama):
    cache = llama.new_cache(1)
    llama.forward(chain_rows([(random_tokens(3), 0, (0,))]), cache)
    before, _ = cache.read([0, 1, 2])
    cache.move([0, 1], [1, 0])
    np.testing.assert_array_equal(cache.read([1, 0, 2])[0], before)


def _layers_of(theirs):
    if hasattr(theirs, "transformer"):
        return theirs.transformer.h
    return getattr(theirs.base_model, "language_model", theirs.base_model).layers


def test_taps_are_what_enters_a_layer_and_what_leaves_the_norm(pair):
    model, theirs = pair
    tokens = random_tokens(12, seed=6)
    depth = model.config.num_hidden_layers
    output = model.forward(chain_rows([(tokens, 0, (0,))]), model.new_cache(1), taps=(0, 1, depth, NORMED))
    with torch.no_grad():
        hidden = theirs(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    last = []
    handle = _layers_of(theirs)[-1].register_forward_hook(lambda _module, _given, result: last.append(result))
    with torch.no_grad():
        theirs(torch.tensor([tokens]))
    handle.remove()
    raw = last[0][0] if isinstance(last[0], tuple) else last[0]
    second = hidden[model.config.file_number(1, is_mlp=False)]
    expected = {0: hidden[0], 1: second, depth: raw.reshape(hidden[0].shape), NORMED: hidden[-1]}
    assert sorted(output.taps) == sorted(expected)
    for tap, states in output.taps.items():
        np.testing.assert_allclose(states, expected[tap][0].numpy(), atol=TOLERANCE, rtol=1e-5)


def test_only_the_asked_rows_have_logits(llama):
    rows = chain_rows([(random_tokens(5), 0, (0,))])
    every = llama.forward(rows, llama.new_cache(1)).logits
    asked = replace(rows, logit_rows=np.array([1, 4], np.int32))
    close(llama.forward(asked, llama.new_cache(1)).logits, every[[1, 4]])


def test_bfloat16_is_near_float32(tiny_models):
    folder, theirs = tiny_models["llama"]
    model = TorchModel(SafetensorsCheckpoint(folder), dtype="bfloat16")
    tokens = random_tokens(10)
    cache = model.new_cache(2)
    logits = model.forward(chain_rows([(tokens, 0, (1,))]), cache).logits
    want = expected(theirs, tokens)
    assert logits.dtype == np.float32
    assert np.corrcoef(logits.ravel(), want.ravel())[0, 1] > 0.999
    assert cache.num_bytes == 2 * 2 * (2 * PAGE_SIZE) * 2 * 16 * 2  # tensors, layers, slots, heads, head_dim, bytes


@pytest.mark.parametrize(
    ("field", "change"),
    [("positions", {"start": 64}), ("token_ids", {"token": VOCAB}), ("taps", {"taps": (3,)})],
)
def test_rows_outside_the_model_are_refused(llama, field, change):
    rows = chain_rows([([change.get("token", 1)], change.get("start", 0), (0,) * 5)])
    with pytest.raises(InvalidParameter, match=field):
        llama.forward(rows, llama.new_cache(5), change.get("taps", ()))


def test_bad_settings_are_refused(tiny_models, llama):
    checkpoint = SafetensorsCheckpoint(tiny_models["llama"][0])
    with pytest.raises(InvalidParameter, match="dtype"):
        TorchModel(checkpoint, dtype="float8")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="device"):
        TorchModel(checkpoint, device="abacus")
    with pytest.raises(InvalidParameter, match="cache"):
        llama.forward(chain_rows([([1], 0, (0,))]), object())


@pytest.mark.weights
def test_the_default_model_answers(default_source):
    model = TorchModel(default_source.checkpoint)
    tokenizer, cache, pages = default_source.tokenizer, model.new_cache(8), range(8)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    tokens = tokenizer.encode_chat(question)
    start, answer = 0, []
    while not answer or answer[-1] not in default_source.eos_token_ids:
        logits = model.forward(chain_rows([(tokens, start, pages)]), cache).logits[-1]
        start, tokens = start + len(tokens), [int(logits.argmax())]
        answer += tokens
    assert tokenizer.decode(answer) == "The capital of France is Paris."
