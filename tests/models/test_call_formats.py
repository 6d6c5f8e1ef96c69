"""Formats of calls: told by templates, and read with the types that schemas give."""

import pytest

from paceline.models.text.call_formats import CALL_FORMATS, HERMES, call_format
from paceline.models.text.tokenizer import StreamDecoder, Tokenizer

from .test_infill import with_tokens
from .vocabularies import CONTROL, byte_level_gguf

SCHEMAS = {
    "f": {
        "properties": {
            "text": {"type": "string"}, "count": {"type": "integer"}, "share": {"type": "number"},
            "asked": {"type": "boolean"}, "each": {"type": "array"}, "in": {"type": "object"},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "kind": {"enum": ["7", "8"]},
            "either": {"type": ["string", "null"]}, "unsaid": {},
        }
    }
}  # fmt: skip
BARE = {
    "text": "5", "count": "5", "share": "0.5", "asked": "true", "each": "[1, 2]", "in": '{"a": null}', "maybe": "null",
    "kind": "7", "either": "null", "unsaid": "5",
}  # fmt: skip
TYPED = {
    "text": "5", "count": 5, "share": 0.5, "asked": True, "each": [1, 2], "in": {"a": None}, "maybe": None, "kind": "7",
    "either": None, "unsaid": "5",
}  # fmt: skip


def read(name, text):
    return CALL_FORMATS[name].read(text, SCHEMAS)


def elements(told):
    return "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in told.items())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_xml", f"\n<function=f>\n{elements(BARE)}</function>\n"),
        ("glm45", "f\n" + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in BARE.items())),
        ("minimax_m2", '<invoke name="f">' + "".join(
            f'<parameter name="{k}">{v}</parameter>\n' for k, v in BARE.items()) + "</invoke>"),
    ],
)  # fmt: skip
def test_bare_texts_become_what_the_schema_says(name, text):
    assert read(name, text) == [("f", TYPED)]


def test_texts_keep_their_lines_and_may_hold_tags():
    code = "if a < b:\n\n    print('</parameter></arg_value>')\n"
    assert read("qwen3_xml", f"<function=f>{elements({'text': code})}</function>") == [("f", {"text": code})]
    assert read("glm45", f"f<arg_key>text</arg_key><arg_value>{code}</arg_value>") == [("f", {"text": code})]


def test_values_that_the_schema_does_not_take_stay_texts():
    told = {"count": "five", "asked": "True", "each": "[1,", "in": "{'a': [1, None]}"}
    assert read("qwen3_xml", f"<function=f>{elements(told)}</function>") == [
        ("f", {"count": "five", "asked": True, "each": "[1,", "in": {"a": [1, None]}})  # Seed-OSS writes Python's
    ]
    assert read("qwen3_xml", "<function=other><parameter=x>5</parameter></function>") == [("other", {"x": "5"})]


def test_several_calls_between_one_pair_of_tags():
    both = [("f", {"count": 1}), ("f", {})]
    assert read("qwen3_xml", f"<function=f>{elements({'count': '1'})}</function>\n<function=f>\n</function>") == both
    assert read("hermes", '[{"name": "f", "arguments": {"count": 1}}, {"name": "f"}]') == both
    assert read("mistral", 'f[ARGS]{"count": 1}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}') == both
    assert read("mistral", ' [{"name": "f", "arguments": {"count": 1}, "id": "a"}, {"name": "f"}]') == both
    assert read("lfm2", "[f(count=1), f()]") == both
    begin, sep, end = (CALL_FORMATS["deepseek_v3"].inner[i] for i in (0, 1, 2))
    assert read("deepseek_v3", f'{begin}f{sep}{{"count": 1}}{end}\n{begin}f{sep}{{}}{end}') == both
    fenced = [f"{begin}function{sep}f\n```json\n{inside}\n```{end}" for inside in ('{"count": 1}', "{}")]
    assert read("deepseek_v3", "\n".join(fenced)) == both


def test_arguments_in_python_and_gemmas_form():
    told = {"text": "a\"b'c", "each": [1, -2.5, None], "unsaid": {"deep": {"x": [True]}}, "asked": False}
    assert read("lfm2", f"[f({', '.join(f'{key}={value!r}' for key, value in told.items())})]") == [("f", told)]
    dashes = [("get-weather", {"a": 1}), ("x.y-z-now", {}), ("f", {})]
    assert read("lfm2", "[get-weather(a=1), x.y-z-now(), f()]") == dashes
    assert read("lfm2", "[f(asked=true, maybe=null)]") == [("f", {"asked": True, "maybe": None})]
    assert read("lfm2", '{"name": "f", "arguments": {"a": 1}}') == [("f", {"a": 1})]
    gemma = 'call:f{text:<|"|>a: "b", {c}<|"|>,count:5,each:[<|"|>x<|"|>,{k:1}],asked:true,maybe:null}'
    assert read("gemma4", gemma) == [
        ("f", {"text": 'a: "b", {c}', "count": 5, "each": ["x", {"k": 1}], "asked": True, "maybe": None})
    ]
    assert read("gemma4", "call:f{}") == [("f", {})]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "[1]"), ("hermes", '{"name": 5}'), ("hermes", "[" * 100_000), ("mistral", "f[ARGS]5"),
        ("glm45", "not a name<arg_key>"), ("lfm2", "[f(__import__('os'))"), ("lfm2", "[f(x=open('y'))]"),
        ("lfm2", "f(" * 5000), ("lfm2", f"[f{'.a' * 700}()]"), ("lfm2", "[f" + "\n.a" * 700 + "()]"),
        ("lfm2", "[" + "a-\n" * 700 + "f()]"), ("lfm2", f"[f{'()' * 700}]"),
        ("lfm2", "[1-f()]"), ("lfm2", "[f()-g()]"),
        ("lfm2", "a-" * 30_000 + "f()"), ("lfm2", "[" + "f()," * 50_000 + "]"),
        ("gemma4", "call:f{x:"), ("gemma4", "call:f"),
        ("qwen3_xml", "<function=f><parameter=x>"), ("deepseek_v3", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>x"),
    ],
)  # fmt: skip
def test_what_is_no_call_gives_none(name, text):
    assert read(name, text) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("glm45", "f\n<arg_key>text</arg_key>\n<arg_value>ab"), ("glm45", "f\n<arg_key>text</arg_key>\n<arg_value>a"
         "</arg_value>\n<arg_key>count</arg_key>\n<arg_value>5"),
        ("qwen3_xml", f"<function=f>{elements({'count': '5'})}junk\n</function>"),
        ("qwen3_xml", "<function=f>\n</function>\nand then\n<function=f>\n</function>"),
        ("qwen3_xml", "<function=f>\n</function>\n<function=f>\n<parameter=count>\n5"),
        ("lfm2", "[f(5)]"), ("lfm2", "[f(**{'count': 5})]"), ("lfm2", "[f(count=5), 7]"), ("lfm2", "[f(in_=...)]"),
        ("lfm2", "[f(x={1, 2})]"), ("lfm2", "[f(x=b'x')]"), ("lfm2", "[f(x=1+2j)]"), ("lfm2", "[f(x={(1, 2): 3})]"),
    ],
)  # fmt: skip
def test_calls_that_are_damaged_or_cut_are_none(name, text):
    assert read(name, text) == []


@pytest.mark.parametrize("text", ["...", "{1, 2}", "b'x'", "1+2j", "{(1, 2): 3}", "f(1)", "[" * 5000])
def test_values_that_json_lacks_stay_texts(text):
    assert read("qwen3_xml", f"<function=f>{elements({'in': text})}</function>") == [("f", {"in": text})]


def test_schemas_are_followed_as_far_as_they_say():
    root = {
        "$defs": {"R": {"type": "object"}, "L": {"$ref": "#/$defs/L"}},
        "properties": {
            "ref": {"$ref": "#/$defs/R"}, "all": {"allOf": [{"$ref": "#/$defs/R"}]}, "shape": {"properties": {}},
            "items": {"items": {}}, "number": {"enum": [1, 2]}, "const": {"const": 5}, "loop": {"$ref": "#/$defs/L"},
            "lost": {"$ref": "#/$defs/None"}, "null": {"type": None}, "any": {"anyOf": None}, "of": {"enum": None},
            "odd": {"type": 5}, "more": 7,
        },
    }  # fmt: skip
    told = dict.fromkeys(root["properties"], "5") | {"ref": "{}", "all": "{}", "shape": '{"a": 1}', "items": "[1]"}
    [(_, found)] = CALL_FORMATS["qwen3_xml"].read(f"<function=f>{elements(told)}</function>", {"f": root})
    assert found == {
        "ref": {}, "all": {}, "shape": {"a": 1}, "items": [1], "number": 5, "const": 5, "loop": "5", "lost": "5",
        "null": "5", "any": "5", "of": "5", "odd": "5", "more": "5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("glm45", "f\n" + "<arg_key>city</arg_key>\n<arg_value>Oslo\n" * 5000), ("glm45", "f" + "<arg_key>" * 20_000),
        ("glm45", "f" + "<arg_key>" * 5000 + "</arg_key><arg_value>" * 5000 + "z" * 50_000),
        ("qwen3_xml", "<function=f>" * 20_000), ("qwen3_xml", "<function=" * 20_000),
        ("qwen3_xml", "<function=f>" + "<parameter=a>" * 20_000 + "</function>"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>" + "\n```json\n" * 20_000),
    ],
)  # fmt: skip
def test_answers_that_never_end_are_no_calls(name, text):
    """Reading from every tag on would take minutes, and stop a server."""
    assert read(name, text) == []


def test_templates_tell_their_format_by_tags():
    def found(template, *tokens):
        return call_format(template, tokens.__contains__).name

    for each in CALL_FORMATS.values():
        if each.marks:
            assert found(" ".join(each.marks)) == each.name
    assert found("{{ tools }} <tool_call> <function=name>") == "qwen3_xml"
    assert found("{{ tools }}", "<|tool_call_start|>") == "lfm2"
    assert found("{{ tools }}") == "llama3_json"
    assert HERMES.tags == ("<tool_call>", "</tool_call>")


def test_a_field_called_tools_is_no_place_for_them():
    """Phi-4-mini's template reads those of a message; tools are then explained in words."""

    def found(template):
        return Tokenizer.from_gguf(byte_level_gguf(extra={"tokenizer.chat_template": template}))

    own = found("{% for m in messages %}{% if 'tools' in m %}<|tool|>{{ m['tools'] }}{% endif %}{% endfor %}")
    assert not own.reads_tools and own.call_format is HERMES
    both = found("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }} [TOOL_CALLS]")
    assert both.reads_tools and both.call_format.name == "mistral"
    assert found("{{ tools }").reads_tools  # which does not compile


def test_control_tokens_that_are_tags_stay_in_the_text():
    template = "{{ tools }} [TOOL_CALLS] [ARGS] [THINK] [/THINK]"
    names = ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "[INST]")
    plain, told = (
        with_tokens(byte_level_gguf(extra={"tokenizer.chat_template": source}), *names, kind=CONTROL)
        for source in ("{{ messages }}", template)
    )
    text = 'the [INST][THINK]cat[/THINK] [TOOL_CALLS]f[ARGS]{"a": 1}'
    ids = told.encode(text, add_special_tokens=False)
    assert told.decode(ids) == text.replace("[INST]", "")
    assert plain.decode(ids) == 'the cat f{"a": 1}'
    stream = StreamDecoder(told)
    assert "".join(map(stream.push, ids)) + stream.flush() == told.decode(ids)
    assert told.with_chat_template("{{ messages }}").decode(ids) == plain.decode(ids)
