"""A chat template that hangs, grows or fails is an error with a remedy, and soon."""

import sys

import pytest

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models import template_sandbox
from paceline.models.chat_template import ChatTemplate

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
    monkeypatch.setattr(template_sandbox, "MOST_STEPS", 20_000)
    template = ChatTemplate(source, {})
    with pytest.raises(InvalidParameter, match="messages: the model's chat template"):
        template.render(MESSAGES)
    assert sys.gettrace() is None or "template_sandbox" not in repr(sys.gettrace())


@pytest.mark.parametrize("source", ["{% if %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"])
def test_what_does_not_compile_says_so(source):
    with pytest.raises(UnsupportedModel, match="chat_template: does not compile"):
        ChatTemplate(source, {})


def test_an_ordinary_template_says_what_it_always_said():
    source = (
        "{% for m in messages %}{{ '<|' + m.role ~ '|>' }}{{ m['content'] | trim }}\n{% endfor %}"
        "{{ '-' * 3 }}{{ '{:>4}'.format(7) }}{{ 7 % 4 }}{{ '%s' % 'x' }}{{ messages | length }}{{ messages | tojson }}"
        "{{ messages | map(attribute='role') | join(',') }}{{ bos_token }}"
    )
    text = ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES)
    assert text == '<|user|>hi\n---   73x1[{"role": "user", "content": "hi"}]user<s>'


def test_a_long_conversation_is_within_the_bounds():
    source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}-{% endif %}\n{% endfor %}"
    text = ChatTemplate(source, {}).render([{"role": "user", "content": "x" * 1000}] * 5000)
    assert len(text) == 5000 * 1000
