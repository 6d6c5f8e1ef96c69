"""A chat template that hangs, grows or fails is an error with a remedy, and soon."""

import sys

import pytest

from paceline.errors import InvalidParameter
from paceline.models.text import template_meter
from paceline.models.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}"


@pytest.mark.parametrize(
    "source",
    [
        ENDLESS + "{% endfor %}" * 3,
        ENDLESS + "{% set x = 1 %}" + "{% endfor %}" * 3,
        "{{ 'a' * 300000000 }}",
        "{{ 300000000 * 'a' }}",
        "{{ [1] * 300000000 }}",
        "{{ 'a'.ljust(300000000) }}",
        "{{ 'a'|center(300000000) }}",
        "{{ 'a'|indent(300000000) }}",
        "{{ '%300000000d' % 1 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}"
        "{% set ns.s = t %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[5].content.upper() }}",
        "{{ ''.__class__.__mro__ }}{{ raise_exception('no') }}",
    ],
)
def test_what_would_hang_or_grow_or_fail_is_refused(source, monkeypatch):
    monkeypatch.setattr(template_meter, "MOST_STEPS", 20_000)
    template = ChatTemplate(source, {})
    with pytest.raises(InvalidParameter, match="messages: the chat template"):
        template.render(MESSAGES)
    assert sys.gettrace() is None or "template_meter" not in repr(sys.gettrace())


BIG = "{% set big = 'ab' * 8000000 %}"
NAMES = "{% set ns = namespace(l=[], n=7) %}"


@pytest.mark.parametrize(
    "source",
    [
        NAMES + "{% for i in range(9999) %}{% set ns.l = ns.l + ['a' * 16000000 ~ i] %}{% endfor %}",
        BIG + NAMES + "{% for i in range(9999) %}{% set ns.l = ns.l + [big[i:]] %}{% endfor %}",
        "{{ range(99999)|map('string')|map('center', 1000000)|list|length }}",
        BIG + "{{ ([big] * 10000)|tojson|length }}",
        BIG + "{{ ([big] * 10000)|join|length }}",
        BIG + "{{ ([big] * 10000)|string|length }}",
        BIG + "{{ ''.join([big] * 10000)|length }}",
        BIG + "{{ [big] * 10000 }}",
        BIG + "{{ ([big] * 10000) ~ '' }}",
        BIG + "{{ big|replace('a', big)|length }}",
        BIG + "{{ big.replace('a', big)|length }}",
        BIG + "{{ big.translate({97: big})|length }}",
        BIG + "{{ ('{0}' * 10000).format(big)|length }}",
        BIG + "{{ (('%(a)s' * 10000) % {'a': big})|length }}",
        BIG + "{{ big.strip(big)|length }}",
        "{{ '{:30000000000}'.format(1)|length }}",
        "{{ '%30000000000d'|format(1)|length }}",
        "{{ ('\\n' * 16000000)|indent(1000000)|length }}",
        "{{ ('\\t' * 16000000).expandtabs(1000000)|length }}",
        "{{ ([1] * 100000)|tojson(indent=1000000)|length }}",
        "{{ ([1] * 3000)|tojson(false, 1000000)|length }}",
        "{{ ([1] * 3000)|tojson(indent='x' * 1000000)|length }}",
        "{{ ([1] * 3000)|tojson(separators=('x' * 1000000, ':'))|length }}",
        "{{ ([[1] * 1000] * 1000000)|sum(start=[])|length }}",
        "{{ 'a'.encode() }}",
        "{{ lipsum(n=1000000) }}",
        NAMES + "{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        NAMES + "{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{{ strftime_now('%c' * 1000000) }}",
    ],
)
def test_what_would_grow_in_one_step_is_refused_before_it_is_made(source, monkeypatch):
    monkeypatch.setattr(template_meter, "MOST_ITEMS", 20_000)
    with pytest.raises(InvalidParameter, match="messages: the chat template") as caught:
        ChatTemplate(source, {}).render(MESSAGES)
    assert "MemoryError" not in str(caught.value) and len(str(caught.value)) < 500


def test_time_is_bounded_where_steps_are_few_and_slow(monkeypatch):
    monkeypatch.setattr(template_meter, "MOST_SECONDS", 0.2)
    source = BIG + "{% for i in range(99999) %}{% if 'c' in big %}{% endif %}{% endfor %}"
    with pytest.raises(InvalidParameter, match="runs without end"):
        ChatTemplate(source, {}).render(MESSAGES)


def test_a_long_refusal_is_cut():
    with pytest.raises(InvalidParameter) as caught:
        ChatTemplate("{{ raise_exception('no' * 100000) }}", {}).render(MESSAGES)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("source", ["{% if %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"])
def test_what_does_not_compile_says_so(source):
    with pytest.raises(InvalidParameter, match="chat_template: does not compile"):
        ChatTemplate(source, {})


def test_an_ordinary_template_says_what_it_always_said():
    source = (
        "{% for m in messages %}{{ '<|' + m.role ~ '|>' }}{{ m['content'] | trim }}\n{% endfor %}"
        "{{ '-' * 3 }}{{ '{:>4}'.format(7) }}{{ 7 % 4 }}{{ '%s' % 'x' }}{{ messages | length }}{{ messages | tojson }}"
        "{{ messages | map(attribute='role') | join(',') }}{{ bos_token }}"
        "{{ messages[0].content[1:] }}{{ 'abcd'[::2] }}{{ messages[:-1] | length }}{{ ', '.join('xy' | list) }}"
        "{{ 'a-b'.split('-')[-1] }}{{ '%s%%' | format(5) }}{{ 'a\\nb' | indent(2) }}{{ {'k': [1]} | tojson(indent=1) }}"
        "{{ [1, 2] | sum }}{{ ' x '.strip() }}{{ none }}{{ 1.5 }}"
    )
    text = ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES)
    ordinary = '<|user|>hi\n---   73x1[{"role": "user", "content": "hi"}]user<s>'
    assert text == ordinary + 'iac0x, yb5%a\n  b{\n "k": [\n  1\n ]\n}3xNone1.5'


def test_what_templates_have_from_transformers():
    """Blocks that mark what an assistant said, and all arguments of its ``tojson``."""
    source = (
        "{% for m in messages %}{% generation %}{% set x = 1 %}{{ m.role }}{{ loop.last }}{% endgeneration %}"
        "{% endfor %}{{ x }}"
        "{{ ['é', {'b': 1, 'a': 2}] | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}"
    )
    assert ChatTemplate(source, {}).render(MESSAGES) == r'userTrue["\u00e9",{"a":2,"b":1}]'


def test_a_long_conversation_is_within_the_bounds():
    source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}-{% endif %}\n{% endfor %}"
    text = ChatTemplate(source, {}).render([{"role": "user", "content": "x" * 1000}] * 5000)
    assert len(text) == 5000 * 1000
