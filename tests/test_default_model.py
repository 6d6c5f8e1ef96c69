"""The default model for real: drafted text is plain text, on prompts of several kinds, greedy and sampled."""

import pytest

from paceline import LLM, SamplingParams
from paceline.models.resolve import resolve_model

pytestmark = pytest.mark.weights

PROMPTS = [
    "Write down the days of the week, then write them down backwards.",
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n",
    "Summarise: The museum opens at ten. On Mondays the museum is closed. On Sundays nobody pays in the museum.",
    "Repeat the word seagull ten times.",
]
CHEAP_PAIR = ["suffix", {"method": "draft_model", "cost_ratio": 0.05}]
GREEDY = [SamplingParams(temperature=0, max_tokens=10)] * len(PROMPTS)
SAMPLED = [SamplingParams(temperature=0.8, top_p=0.95, seed=i, max_tokens=10) for i in range(len(PROMPTS))]
INT8 = {"dtype": "int8"}
"""Draft with the target's own weights, coarser: no smaller model of the family is built in."""
DRAFTS = [
    {"method": "ngram"},
    {"method": "suffix"},
    {"method": "suffix", "options": {"scoring": "published"}},
    {"method": "draft_model", "model": "smollm2-135m", "num_draft_tokens": 4},
    *(
        {"method": "draft_model", "model": "smollm2-135m", "num_draft_tokens": 6, "options": {"tree": tree} | INT8}
        for tree in ("static", "dynamic", "sampled")
    ),
    {
        "method": "specinfer",
        "options": {"models": ["smollm2-135m"] * 2, "dtypes": ["int8", "bfloat16"], "expansion": [[2, 1], [1, 1]]},
    },
    {"method": "cross_vocabulary", "model": "smollm2-135m", "num_draft_tokens": 4},
    {"method": "hybrid", "options": {"drafters": CHEAP_PAIR}, "model": "smollm2-135m"},
    {"method": "cross_vocabulary", "model": "smollm2-135m", "num_draft_tokens": 4, "options": {"mode": "string"}},
    {"method": "lookahead", "options": {"window_size": 3, "ngram_size": 3, "guess_set_size": 3}},
    {"method": "jacobi"},
    {"method": "layer_skip", "num_draft_tokens": 3},
    {"method": "sparse_cache", "num_draft_tokens": 3, "options": {"cache_budget": 48}},
]


@pytest.fixture(scope="module")
def plain():
    return LLM("smollm2-135m", speculative=None)


@pytest.fixture(scope="module")
def prompts(plain):
    """Each twice: once for a greedy answer, once for a sampled one."""
    return 2 * [plain.chat_prompt([{"role": "user", "content": text}]) for text in PROMPTS]


@pytest.fixture(scope="module")
def alone(plain, prompts):
    return [plain.generate(prompt, own)[0] for prompt, own in zip(prompts, GREEDY + SAMPLED, strict=True)]


def names(draft):
    return draft["method"] + draft.get("options", {}).get("mode", draft.get("options", {}).get("tree", ""))


@pytest.mark.parametrize("draft", DRAFTS, ids=names)
def test_text_in_one_batch_is_plain_text_alone(plain, prompts, alone, draft):
    """Greedy and sampled, drafts of a fixed length: goodput would find on many machines that none pays."""
    drafted = plain.drafting_with(draft | {"policy": "fixed"}).generate(prompts, GREEDY + SAMPLED)
    assert [o.token_ids for o in drafted] == [o.token_ids for o in alone]
    assert [o.text for o in drafted] == [o.text for o in alone]
    assert sum(o.stats.num_accepted_tokens for o in drafted) > 0


@pytest.mark.parametrize("draft", ["suffix", {"method": "hybrid", "model": "smollm2-135m"}], ids=str)
def test_text_is_plain_text_whatever_the_default_policy_finds(plain, prompts, alone, draft):
    drafted = plain.drafting_with(draft).generate(prompts, GREEDY + SAMPLED)
    assert [o.token_ids for o in drafted] == [o.token_ids for o in alone]


def test_the_chat_template_and_the_answer_are_sensible(plain):
    output = plain.chat([{"role": "user", "content": "Name the capital of France."}], SamplingParams(temperature=0))[0]
    assert "Paris" in output.text
    assert output.finish_reason == "stop"
    assert "<|im_end|>" not in output.text


def test_a_prompt_may_be_text_or_ids_and_outputs_keep_their_order(plain):
    texts = ["The first month is", "The last month is"]
    params = SamplingParams(temperature=0, max_tokens=4)
    outputs = plain.generate(texts, params)
    assert [o.prompt for o in outputs] == texts
    by_ids = plain.generate([plain.tokenizer.encode(text) for text in texts], params)
    assert [o.token_ids for o in by_ids] == [o.token_ids for o in outputs]
    assert [o.prompt for o in by_ids] == [None, None]


def test_an_abandoned_stream_frees_its_request(plain):
    stream = plain.stream("Once upon a time", SamplingParams(temperature=0, max_tokens=50))
    next(stream)
    stream.close()
    assert plain.generate("1, 2,", SamplingParams(temperature=0, max_tokens=3))[0].finish_reason == "length"


def test_two_streams_at_once_keep_their_tokens_apart(plain):
    params = SamplingParams(temperature=0, max_tokens=12)
    texts = ["The sky is", "My dog likes"]
    alone = [plain.generate(text, params)[0].token_ids for text in texts]
    streams = [plain.stream(text, params) for text in texts]
    seen = [[], []]
    for _ in range(12):
        for mine, stream in zip(seen, streams, strict=True):
            mine.append(next(stream).token_id)
    assert [tuple(s) for s in seen] == alone


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "w8a8"])
def test_other_weight_types_keep_their_promise_too(dtype):
    llm = LLM("smollm2-135m", speculative=None, dtype=dtype)
    params = SamplingParams(temperature=0, max_tokens=12)
    alone = [llm.generate(text, params)[0].token_ids for text in PROMPTS[:3]]
    drafted = llm.drafting_with("ngram").generate(PROMPTS[:3], params)
    assert [o.token_ids for o in drafted] == alone


def test_logits_agree_with_the_torch_reference():
    torch_executor = pytest.importorskip("paceline.models.torch_executor")
    import numpy as np

    from paceline.models.numba_executor.executor import NumbaModel
    from paceline.models.rows import Part, build_rows

    source = resolve_model("smollm2-135m")
    rows = build_rows([Part(range(8), 0, source.tokenizer.encode(" ".join(2 * PROMPTS))[:100])])
    fast, slow = NumbaModel(source.checkpoint, "float32"), torch_executor.TorchModel(source.checkpoint)
    ours = fast.forward(rows, fast.new_cache(8)).logits
    theirs = slow.forward(rows, slow.new_cache(8)).logits
    np.testing.assert_allclose(ours, theirs, atol=2e-3)  # logits reach 40
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).all()
