"""Structured output in the engine: the text follows its grammar, whatever is drafted; known traps are closed."""

import json
import re
import threading
import time

import numpy as np
import pytest

from paceline.engine.text.grammar import Cursor, Grammars
from paceline.errors import InvalidParameter
from paceline.sampling import TokenTree
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all
from tests.fakes import Babbler, ByteTokenizer, Oracle

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ab", "abc"]}, "ok": {"type": "boolean"}, "n": {"type": "integer"}},
    "required": ["name", "ok", "n"],
    "additionalProperties": False,
}
FIXED = {"method": "plain", "num_draft_tokens": 4, "policy": "fixed"}
GRAMMARS = {
    "json": {"json": SCHEMA},
    "json_object": {"json_object": True},
    "regex": {"regex": "(ab|cd){3}x*"},
    "choice": {"choice": ["yes", "no", "yesterday"]},
    "lark": {"grammar": 'start: "<" /[a-c]{2,4}/ ">"'},
    "gbnf": {"grammar": 'root ::= "a" | "b" root'},
}


def asked(grammar, **changes):
    return SamplingParams(
        **({"temperature": 0, "max_tokens": 120, "structured_outputs": grammar, "logit_bias": {ord("0"): -9}} | changes)
    )


def follows(name, text):
    if name.startswith("json"):
        found = json.loads(text)
        return isinstance(found, dict) and (name == "json_object" or set(found) == {"name", "ok", "n"})
    pattern = {"regex": "(ab|cd){3}x*", "choice": "yes|no|yesterday", "lark": "<[a-c]{2,4}>", "gbnf": "b*a"}[name]
    return re.fullmatch(pattern, text) is not None


STRUCTURES = [{"begin": "<f=add>", "schema": {"type": "integer"}, "end": "</f>"},
              {"begin": "<f=say>", "schema": {"enum": ["a"]}, "end": "</f>"}]  # fmt: skip
TAGS = {"structures": STRUCTURES, "triggers": ["<f="]}
LISTED = [{"trigger": "<f=", "begin": "<f=add>", "grammar": {"type": "integer"}, "end": "</f>"},
          {"trigger": "<f=", "begin": "<f=say>", "grammar": 'start: "\\"a\\""', "end": "</f>"}]  # fmt: skip


@pytest.mark.parametrize("form", [TAGS, LISTED])
@pytest.mark.parametrize(("text", "follows"), [
    ("free < text", True), ("<f=add>17</f> and <f=say>\"a\"</f>", True), ("<f=add>x", False), ("<f=m", False),
    ("<f=add>17</g", False), ("<f=say>\"b", False),
])  # fmt: skip
def test_structural_tags_bind_what_comes_after_a_trigger_only(form, text, follows):
    tokenizer = ByteTokenizer()
    grammars = Grammars(tokenizer, tokenizer.eos_token_ids, tokenizer.vocab_size)
    cursor, ids = grammars.cursor({"structural_tag": json.dumps(form)}), tokenizer.encode(text)
    for token in ids[:-1]:
        assert cursor.allows(token)
        cursor.commit(token)
    assert cursor.allows(ids[-1]) == follows


@pytest.mark.parametrize("form", [
    [], {}, 3, [{}], [LISTED[0] | {"trigger": ""}], [LISTED[0] | {"begin": "f"}], [LISTED[0] | {"more": 1}],
    {"structures": [3], "triggers": ["<"]}, TAGS | {"triggers": ["<g="]}, TAGS | {"triggers": "<f="},
    {"structures": [], "triggers": []},
])  # fmt: skip
def test_structural_tags_that_make_no_sense_are_refused_by_name(form):
    tokenizer = ByteTokenizer()
    grammars = Grammars(tokenizer, tokenizer.eos_token_ids, tokenizer.vocab_size)
    with pytest.raises(InvalidParameter, match="structural_tag"):
        grammars.cursor({"structural_tag": json.dumps(form)})


def compiled(kind, source):
    tokenizer = ByteTokenizer()
    return Grammars(tokenizer, tokenizer.eos_token_ids, tokenizer.vocab_size).compiled({kind: source})


LARGE, LEAST = {"enum": [{"id": 2**53 + 1}]}, {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}


@pytest.mark.parametrize(("kind", "source", "named"), [
    ("json", json.dumps(LARGE), "enum has 9007199254740993"),
    ("json", json.dumps({"type": "array", "items": LEAST}), "m..imum has -9223372036854775808"),
    ("grammar", f"start: %json {json.dumps(LEAST)}", "m..imum has -9"),
    ("structural_tag", json.dumps([LISTED[0] | {"grammar": LARGE}]), "enum has 9"),
    ("structural_tag", json.dumps([LISTED[0] | {"grammar": f"start: %json{json.dumps(LARGE)}"}]), "enum has 9"),
])  # fmt: skip
def test_numbers_that_would_be_rounded_or_never_compiled_are_refused(kind, source, named):
    """The first gave 9007199254740992, the second ended the process."""
    with pytest.raises(InvalidParameter, match=f"structured_outputs: {kind}: {named}"):
        compiled(kind, source)


def test_numbers_that_are_kept():
    kept = {"enum": [2**53, -1.5e300, True, None], "default": 2**60, "maximum": 2**63}
    assert not compiled("json", json.dumps(kept)).is_error()


def test_the_longest_chain_of_rules_does_not_overflow_the_stack():
    rules = "\n".join(f'r{i}: r{i + 1} "a"' for i in range(3000))
    assert not compiled("grammar", f'start: r0\n{rules}\nr3000: "b"').is_error()


def test_what_does_not_compile_is_told_in_one_line():
    with pytest.raises(InvalidParameter, match="unclosed group; change") as refused:
        compiled("regex", "(")
    assert "\n" not in str(refused.value) and "^" not in str(refused.value)


def test_a_schema_without_an_end_is_refused_in_one_line():
    with pytest.raises(InvalidParameter) as caught:
        compiled("json", '{"$ref": "#"}')
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("name", ["json", "regex", "choice", "lark", "gbnf"])
def test_text_follows_its_grammar_and_is_plain_decodings(engine_for, name, temperature):
    params = asked(GRAMMARS[name], temperature=temperature, seed=3)
    plain = run_all(engine_for(), params=params)
    for output in plain:
        assert output.finish_reason in ("stop", "length"), output.error
        assert output.finish_reason == "length" or follows(name, output.text), output.text
    texts = [output.token_ids for output in plain]
    hybrid = {"method": "hybrid", "model": "random-1"}
    for speculative, drafter in ((FIXED, Babbler()), ("ngram", None), (hybrid, None)):
        outputs = run_all(engine_for(speculative, drafter), params=params)
        assert [output.token_ids for output in outputs] == texts
        assert not any(output.error for output in outputs)


@pytest.mark.parametrize("where", ["allowed", "forced", "commit"])
def test_a_grammar_that_fails_ends_its_request_alone(engine_for, monkeypatch, where):
    """llguidance gives up on a grammar that grows too large, whoever asks: a cut draft, a law, a committed token."""
    params = [asked(GRAMMARS["json"], temperature=t, seed=3) for t in (0, 1.0, 0, 1.0)]
    plain = run_all(engine_for(), params=params)
    engine, worked, victims = engine_for(FIXED, Babbler()), getattr(Cursor, where), []

    def failing(self, *arguments):
        state = engine.state_of("2") if "2" in engine._requests else None
        if state is not None and state.num_output_tokens > 4 and self is engine._requests["2"].samples[0].grammar:
            victims.append(state)
            raise ValueError("the grammar failed: it has grown too large")
        return worked(self, *arguments)

    monkeypatch.setattr(Cursor, where, failing)
    outputs = run_all(engine, params=params)
    assert victims and outputs[2].finish_reason == "error" and "too large" in outputs[2].error
    assert outputs[2].token_ids == plain[2].token_ids[: len(outputs[2].token_ids)]
    others = [0, 1, 3]
    assert [outputs[n].token_ids for n in others] == [plain[n].token_ids for n in others]
    assert engine.metrics.finished["error"] == 1 and engine.scheduler.pool.num_held == 0
    engine.scheduler.check_integrity()


def test_trees_with_the_truth_on_a_branch_are_cut_and_accepted(engine_for):
    params = asked(GRAMMARS["json"])
    plain = run_all(engine_for(), params=params)
    oracle = Oracle({o.prompt_token_ids: [*o.prompt_token_ids, *o.token_ids] for o in plain})
    outputs = run_all(engine_for(FIXED, oracle), params=params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
    assert sum(o.stats.num_accepted_tokens for o in outputs) > 20


def test_forced_tokens_are_drafted_for_nothing(engine_for):
    """Even where no drafter is loaded: most of this text is determined by its schema."""
    [output] = run_all(engine_for(), PROMPTS[:1], asked({"choice": ["a very long and certain answer"]}))
    assert output.text == "a very long and certain answer"
    sample = output.outputs[0]
    assert sample.num_forced_tokens + output.stats.num_target_passes + 1 >= len(output.token_ids)
    assert sample.num_forced_tokens > 0.6 * len(output.token_ids)
    assert output.stats.num_target_passes < 0.4 * len(output.token_ids)
    [off] = run_all(engine_for(), PROMPTS[:1], asked({"choice": ["a very long and certain answer"]}, speculative=False))
    assert off.token_ids == output.token_ids and off.stats.num_draft_tokens == 0


def test_it_ends_where_it_is_complete_inside_an_accepted_draft(engine_for):
    class Longwinded(Babbler):
        def propose(self, contexts):
            return [TokenTree.chain(list(b"yes and more")[: context.budget]) for context in contexts]

    params = asked({"choice": ["yes"]}, ignore_eos=True)
    for output in run_all(engine_for(FIXED, Longwinded()), params=params):
        assert (output.text, output.finish_reason) == ("yes", "stop")


def test_special_and_end_tokens_in_drafts_change_nothing(engine_for):
    class Special(Babbler):
        def propose(self, contexts):
            return [TokenTree.chain([130, 128, 129, 130][: context.budget]) for context in contexts]

    class Branching(Babbler):
        def propose(self, contexts):
            return [TokenTree((130, 128, ord("{"), 130), (-1, -1, -1, 2)).prune(context.budget) for context in contexts]

    for grammar in (GRAMMARS["json"], GRAMMARS["regex"]):
        plain = run_all(engine_for(), params=asked(grammar))
        for drafter in (Special(), Branching()):
            outputs = run_all(engine_for(FIXED, drafter), params=asked(grammar))
            assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
            assert not any(o.error for o in outputs)


def test_a_grammar_that_compiles_long_keeps_nobody_waiting(monkeypatch):
    """The engine's thread takes known ones while another thread compiles."""
    grammars = Grammars(ByteTokenizer(), (130,), 131)  # type: ignore[arg-type]
    known = grammars.compiled({"regex": "a"})
    compile_it, held, began = grammars._compile, threading.Event(), threading.Event()

    def slow(kind, source):
        began.set()
        assert held.wait(10)
        return compile_it(kind, source)

    monkeypatch.setattr(grammars, "_compile", slow)
    other = threading.Thread(target=grammars.compiled, args=({"regex": "b"},))
    other.start()
    assert began.wait(10)
    assert grammars.compiled({"regex": "a"}) is known
    held.set()
    other.join(10)
    assert not other.is_alive()


def test_what_is_slow_at_first_is_done_by_whoever_compiles(monkeypatch):
    """A copy of a large grammar answers at once: its first mask is there already."""
    grammars = Grammars(ByteTokenizer(), (130,), 131)  # type: ignore[arg-type]
    began: list[object] = []
    begin = grammars._begin
    monkeypatch.setattr(grammars, "_begin", lambda matcher: (began.append(matcher), begin(matcher)))
    wanted = {"json": json.dumps({"anyOf": [{"properties": {f"a{i}": {"type": "string"}}} for i in range(300)]})}
    cursor = grammars.cursor(wanted)
    used = time.process_time()
    cursor.forced()
    assert cursor.allowed() is not None and len(began) == 1
    first, used = time.process_time() - used, time.process_time()
    begin(grammars._compile("json", wanted["json"]))
    assert first < (time.process_time() - used) / 2


def test_samples_have_cursors_of_their_own(engine_for):
    [output] = run_all(engine_for("ngram"), PROMPTS[:1], asked(GRAMMARS["regex"], n=4, temperature=2.0, seed=1))
    assert len({sample.text for sample in output.outputs}) > 1
    assert all(follows("regex", sample.text) for sample in output.outputs if sample.finish_reason == "stop")


def test_preemption_and_neighbours_change_nothing(engine_for):
    params = [asked(GRAMMARS["json"]), asked(None, ignore_eos=True), asked(GRAMMARS["regex"], temperature=1, seed=2),
              asked(None, temperature=0.5, seed=9)]  # fmt: skip
    alone = [run_all(engine_for(), [prompt], own)[0] for prompt, own in zip(PROMPTS, params, strict=True)]
    engine = engine_for("ngram", kv_cache_memory_bytes=160_000, max_model_len=170)
    crowded = run_all(engine, params=params)
    assert [o.token_ids for o in crowded] == [o.token_ids for o in alone]


def test_a_law_that_is_emptied_ends_its_request_only(engine_for):
    impossible = asked({"choice": ["yes"]}, logit_bias={}, bad_words=["y"], temperature=1)
    early = asked({"choice": ["no"]}, min_tokens=50)
    fine = asked({"choice": ["no"]})
    outputs = run_all(engine_for("ngram"), PROMPTS[:3], [impossible, early, fine])
    assert outputs[0].finish_reason == "error" and "forbidden" in (outputs[0].error or "")
    assert [outputs[1].text, outputs[2].text] == ["no", "no"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"json": {"type": "nonsense"}},
        {"json": "{"},
        {"json": {"$ref": "https://example.org/x.json"}},
        {"regex": "("},
        {"grammar": "start: nothing"},
        {"regex": "a", "json": {}},
        {"invented": 1},
        {"choice": []},
        {"json": {"enum": ["x" * 70_000]}},
        {},
        "json",
    ],
)
def test_what_is_no_grammar_is_refused(engine_for, wrong):
    with pytest.raises(InvalidParameter) as caught:
        run_all(engine_for(), PROMPTS[:1], asked(wrong))
    assert caught.value.field.startswith("structured_outputs")


class TestCursor:
    """The library's traps, each as it was found."""

    def cursor(self, pattern: str) -> Cursor:
        tokenizer = ByteTokenizer()
        return Grammars(tokenizer, (130,), 131).cursor({"regex": pattern})  # type: ignore[arg-type]

    def letters(self, mask) -> str:
        return "".join(chr(i) if i < 128 else "$" for i in np.flatnonzero(mask) if i < 128 or i == 130)

    def test_an_impossible_path_spoils_nothing(self):
        cursor = self.cursor("a(b|c)d")
        assert cursor.allowed([ord("z")]) is None
        assert cursor.allowed(list(b"az")) is None
        assert self.letters(cursor.allowed(list(b"a"))) == "bc"
        assert self.letters(cursor.allowed()) == "a"

    def test_single_tokens_are_allowed_as_in_the_mask(self):
        cursor = self.cursor("a(b|c)d?")
        for path in (b"", b"a", b"ab", b"abd", b"z"):
            mask = cursor.allowed(list(path))
            letters = range(131) if mask is not None else ()
            assert all(cursor.allows(i, list(path)) == mask[i] for i in letters)
        assert not cursor.allows(ord("a"), list(b"z")) and not cursor.allows(999)

    def test_siblings_and_depths_in_any_order(self):
        cursor = self.cursor("a(b|c)de?")
        for path, after in ((b"abd", "e$"), (b"ac", "d"), (b"", "a"), (b"acd", "e$"), (b"ab", "d"), (b"a", "bc")):
            assert cursor.allowed(list(b"abde")) is None
            assert self.letters(cursor.allowed(list(path))) == after

    def test_the_end_is_never_fed_and_going_back_over_it_loses_nothing(self):
        cursor = self.cursor("ab?")
        cursor.commit(ord("a"))
        assert self.letters(cursor.allowed()) == "b$"
        assert cursor.allowed([130]) is None and cursor.allowed([130, 130]) is None
        assert cursor.allowed(list(b"b")) is None
        assert cursor.allowed([ord("b"), 130]) is None
        assert self.letters(cursor.allowed()) == "b$"
        cursor.commit(ord("b"))
        assert cursor.is_finished and cursor.allowed() is None and list(cursor.forced()) == []

    def test_a_commit_after_a_walk_elsewhere(self):
        cursor = self.cursor("(ab|cd)e")
        assert cursor.allowed(list(b"cd")) is not None
        cursor.commit(ord("a"))
        assert list(cursor.forced()) == list(b"be")
        with pytest.raises(ValueError, match="does not allow"):
            cursor.commit(ord("x"))
        cursor.commit(ord("b"))
        cursor.commit(ord("e"))
        assert cursor.is_finished
