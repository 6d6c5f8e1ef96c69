"""Laws as tensors against their numpy twins: noise, warping, trials, picks; and the rules that walk over answers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.errors import InvalidParameter  # noqa: E402
from paceline.models.cuda_executor.laws import Wide, answers_of, peaks_of, read_answers  # noqa: E402
from paceline.models.cuda_executor.laws.noise import exponentials, words  # noqa: E402
from paceline.models.cuda_executor.laws.warp import law_weights, ordered_sum  # noqa: E402
from paceline.sampling import CounterRandomness, Law, TokenTree, Warper, resolve  # noqa: E402
from paceline.sampling.answered import asks_of, question_about, questions_about, verify_answered  # noqa: E402
from paceline.sampling.warp import truncated_law  # noqa: E402
from paceline.types import SamplingParams  # noqa: E402

VOCAB = 97
CPU = torch.device("cpu")
PARAMS = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 0.9, "min_p": 0.05, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.8, "repetition_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    {"temperature": 0, "repetition_penalty": 1.7, "logit_bias": {3: 4.0, 90: -2.0}},
    {"temperature": 1.0, "min_tokens": 30, "stop_token_ids": [5, 6]},
]
TEXT = [1, 2, 3, 4, 3, 3, 8]


def logits_of(rows, seed=0):
    return np.random.default_rng(seed).normal(0, 3, (rows, VOCAB)).astype(np.float32)


def warper_of(values, text=TEXT, **more):
    return Warper(SamplingParams(max_tokens=50, **values), token_ids=text, num_prompt_tokens=3, **more)


def answered(logits, questions, race=None):
    rows = torch.from_numpy(logits)
    wide = Wide.of(questions, logits.shape[1], torch.from_numpy)
    return read_answers(answers_of(rows, peaks_of(rows), wide, race).numpy(), questions)


def test_noise_is_the_hosts():
    keys = [CounterRandomness(seed, stream).key(position, "target", -1)
            for seed in (0, 7, -3, 2**63 + 11) for stream in (0, 4) for position in (0, 500)]  # fmt: skip
    ours = exponentials(torch.from_numpy(words(keys)), torch.arange(1000)).numpy()
    for seed, stream, position, row in [(0, 0, 0, 0), (7, 4, 500, 7), (-3, 0, 500, 9), (2**63 + 11, 4, 0, 14)]:
        want = CounterRandomness(seed, stream).exponentials(np.arange(1000), position, "target")
        np.testing.assert_array_max_ulp(ours[row], want, 1)


@pytest.mark.parametrize("values", PARAMS[1:5])
def test_weights_are_the_warped_law(values):
    gaps = logits_of(6).astype(np.float64)
    gaps[2, 10:40] = gaps[2, 10]  # ties
    columns = [torch.from_numpy(np.full((6, 1), values.get(name, default))) for name, default in
               (("temperature", 1.0), ("min_p", 0.0), ("top_k", 0), ("top_p", 1.0))]  # fmt: skip
    weights = law_weights(torch.from_numpy(gaps), *columns, True)
    for ours, row in zip(weights.numpy(), gaps, strict=True):
        limits = {name: values[name] for name in ("min_p", "top_k", "top_p") if name in values}
        law = truncated_law((row - row.max()) / values["temperature"], **limits)
        np.testing.assert_array_equal(np.flatnonzero(ours), law.tokens)
        np.testing.assert_allclose(ours[law.tokens] / ours.sum(), law.probs, rtol=1e-12)


def test_sums_have_one_order():
    values = torch.from_numpy(logits_of(8)).double().exp()
    alone = torch.cat([ordered_sum(values[i : i + 1]) for i in range(8)])
    assert torch.equal(ordered_sum(values), alone)
    torch.testing.assert_close(alone, values.sum(-1, keepdim=True))


def test_many_requests_are_answered_as_each_would_be():
    """Every kind of request in one batch: the pick is the host's race over the host's law."""
    logits, noise = logits_of(len(PARAMS)), CounterRandomness(11)
    warpers = [warper_of(values, eos_token_ids=(96,)) for values in PARAMS]
    questions = [question_about(each, (), noise.key(7 + i, "target", -1)) for i, each in enumerate(warpers)]
    for i, answer in enumerate(answered(logits, questions)):
        assert answer is not None
        assert answer.pick == noise.draw(warpers[i].law(logits[i]), 7 + i, "target")
        assert answer.argmax == logits[i].argmax()


def test_the_kernel_draws_what_its_twin_draws():
    race = pytest.importorskip("paceline.models.cuda_executor.kernels.races").race
    noise, rng = CounterRandomness(4), np.random.default_rng(2)
    logits = rng.normal(0, 3, (40, 5000)).astype(np.float32)  # three chunks
    logits[3] = logits[3, 0]
    laws = ({"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.3}, {"temperature": 1.5, "min_p": 0.1})
    warpers = [warper_of(laws[i % 4], text=()) for i in range(40)]
    questions = [question_about(each, (), noise.key(i, "target", -1)) for i, each in enumerate(warpers)]
    wide = Wide.of(questions, 5000, torch.from_numpy)
    assert wide is not None and wide.is_race
    found = answered(logits, questions, race)
    assert found == answered(logits, questions)
    for i, answer in enumerate(found):
        assert answer.pick == noise.draw(warpers[i].law(logits[i]), i, "target")
        assert answered(logits[i : i + 1], questions[i : i + 1], race)[0] == answer


CUTS = [
    {"top_p": 0.9}, {"top_k": 5}, {"top_p": 0.6, "temperature": 1.3}, {"top_k": 50, "top_p": 0.9},
    {"min_p": 0.01, "top_k": 20, "top_p": 0.8}, {"top_p": 0.5, "temperature": 2.0}, {"min_p": 0.2, "top_k": 900},
    {}, {"temperature": 0}, {"top_k": 1000, "top_p": 0.999},
]  # fmt: skip


@pytest.mark.parametrize("size", [9000, 97])
def test_the_kernel_draws_what_is_left_of_cut_laws(size):
    """Without sorting, among ties too: all logits of a row, those at the peak, and half of them."""
    race = pytest.importorskip("paceline.models.cuda_executor.kernels.races").race
    noise, rng = CounterRandomness(4), np.random.default_rng(2)
    logits = rng.normal(0, 3, (40, size)).astype(np.float32)
    logits[30:, ::2] = 1.0
    logits[20:30, 10:60] = logits[20:30].max(axis=1, keepdims=True)
    logits[10:13] = 2.5
    warpers = [warper_of({"temperature": 0.9} | CUTS[i % len(CUTS)], text=()) for i in range(40)]
    questions = [question_about(each, (), noise.key(i, "target", -1)) for i, each in enumerate(warpers)]
    wide = Wide.of(questions, size, torch.from_numpy)
    assert wide is not None and wide.is_race
    found = answered(logits, questions, race)
    assert found == answered(logits, questions)
    assert [answer.pick for answer in found] == [
        noise.draw(each.law(row), i, "target") for i, (each, row) in enumerate(zip(warpers, logits, strict=True))
    ]
    plain = [noise.exponentials(np.arange(size), i, "target") / np.exp((row - row.max()) / 0.9)
             for i, row in enumerate(logits.astype(np.float64))]  # fmt: skip
    assert sum(answer.pick != times.argmin() for answer, times in zip(found, plain, strict=True)) > 5, (
        "none was outside"
    )


def test_the_kernel_draws_a_token_of_a_broken_row():
    """Between times that are not numbers a GPU's argmin may choose any place, and the interpreter's chooses none."""
    race = pytest.importorskip("paceline.models.cuda_executor.kernels.races").race
    logits = np.random.default_rng(2).normal(0, 3, (4, 5000)).astype(np.float32)
    logits[0], logits[1, 5], logits[2, 5], logits[3] = np.nan, np.nan, np.inf, -np.inf
    for cut in ({}, {"top_p": 0.9}, {"top_k": 3, "top_p": 0.5}):
        questions = [question_about(warper_of({"temperature": 1.0} | cut), (), row) for row in range(4)]
        assert all(0 <= answer.pick < 5000 for answer in answered(logits, questions, race))


@pytest.mark.parametrize(
    "values",
    [{"top_k": 1025, "top_p": 0.9}, {"top_p": 0.49}, {"repetition_penalty": 1.2}, {"temperature": 0, "min_tokens": 9}],
)
def test_what_is_more_than_a_race_is_none(values):
    warper = warper_of({"temperature": 1.0} | values, eos_token_ids=(96,))
    wide = Wide.of([question_about(warper, (), 1)], VOCAB, torch.from_numpy)
    assert wide is not None and not wide.is_race


def test_rows_of_nobody_are_passed_over():
    logits = logits_of(4)
    [first, nothing, third, last] = answered(
        logits,
        [question_about(warper_of({"temperature": 0}), (), 1), None] + 2 * [question_about(warper_of({}), (), 2)],
    )
    assert nothing is None
    assert first.pick == logits[0].argmax()
    assert third is not None
    assert last is not None


def test_a_row_is_answered_alike_alone_and_among_others():
    logits, noise = logits_of(len(PARAMS), 3), CounterRandomness(5)
    laws = [Law.from_dense(np.full(VOCAB, 1 / VOCAB)), Law.one_hot(9)]
    questions = [
        question_about(warper_of(values), (), noise.key(i, "target", -1), ((9, laws[0]), (9, laws[1])))
        for i, values in enumerate(PARAMS)
    ]
    every = answered(logits, questions)
    assert every == [answered(logits[i : i + 1], [each])[0] for i, each in enumerate(questions)]


class Grammar:
    """Even tokens only, and 60 tokens in all."""

    def allowed(self, path=()):
        return np.arange(60) % 2 == 0

    def allows(self, token, path=()):
        return token < 60 and token % 2 == 0


def test_a_grammar_forbids():
    logits = logits_of(2)
    warpers = [warper_of({"temperature": t}, grammar=Grammar()) for t in (0, 1.0)]
    noise = CounterRandomness(2)
    found = answered(logits, [question_about(each, (), noise.key(0, "target", -1)) for each in warpers])
    for answer, warper, row in zip(found, warpers, logits, strict=True):
        assert answer is not None
        assert answer.pick == noise.draw(warper.law(row), 0, "target")


def random_tree(rng, draw, params):
    """A tree of three levels whose nodes were drawn from laws a drafter might have."""
    tokens, parents, laws, rows = [], [], [], []
    level = [-1]
    for _ in range(3):
        below = []
        for parent in level[:2]:
            law = warper_of(params).law((4 * rng.normal(0, 1, VOCAB)).astype(np.float32))
            count = min(2, len(law.tokens))
            replace = draw == "iid"
            for token in rng.choice(law.tokens, count, replace=replace, p=law.probs):
                below.append(len(tokens))
                tokens.append(int(token))
                parents.append(parent)
                rows.append(len(laws))
            laws.append(law)
        level = below
    if draw == "one_hot":
        return TokenTree(tuple(tokens), tuple(parents))
    return TokenTree(tuple(tokens), tuple(parents), draw, tuple(laws), tuple(rows))


@pytest.mark.parametrize("values", [PARAMS[1], PARAMS[4], PARAMS[5], PARAMS[6]])
@pytest.mark.parametrize("draw", ["one_hot", "iid", "without_replacement"])
@pytest.mark.parametrize("rule", ["p/q", "coupled", "sample_and_match", "auto"])
def test_verdicts_over_answers_are_those_over_laws(rule, draw, values):
    rng, verifier, accepted = np.random.default_rng(4), resolve(rule), 0
    for seed in range(6):
        tree, noise, warper = random_tree(rng, draw, values), CounterRandomness(seed), warper_of(values)
        logits = logits_of(len(tree) + 1, seed)
        for node, parent in enumerate(tree.parents):  # so that some are accepted
            logits[parent + 1, tree.tokens[node]] += 4 if values["temperature"] else 40
        asks = asks_of(verifier, tree)
        assert asks is not None
        answers = answered(logits, questions_about(tree, warper, noise, len(TEXT), asks))
        ours = verify_answered(verifier, tree, answers, noise, len(TEXT))
        theirs = verifier(tree, lambda n: warper.law(logits[n + 1], tree.tokens_to(n)), noise, len(TEXT))  # noqa: B023
        assert ours == theirs
        accepted += len(ours.path)
    assert accepted


def test_rules_that_ask_for_more_are_known():
    tree = TokenTree.chain([1])
    assert asks_of(resolve("block"), tree) is None
    assert asks_of(resolve("rejection_sampling"), tree) is None
    assert asks_of(resolve("lenient", lenience=0.5), tree) is None
    assert asks_of(resolve("auto"), tree) == "draws"


@pytest.mark.parametrize("values", [PARAMS[0], PARAMS[1], PARAMS[5]])
def test_logits_without_a_law_are_refused_as_by_the_host(values):
    logits = logits_of(1)
    logits[0, 4] = np.nan
    warper, noise = warper_of(values), CounterRandomness(0)
    answers = answered(logits, questions_about(TokenTree(), warper, noise, 7, "draws"))
    with pytest.raises(InvalidParameter, match="nan"):
        verify_answered(resolve("auto"), TokenTree(), answers, noise, 7)
