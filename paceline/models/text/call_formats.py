"""`CallFormat`: how a model writes calls of tools, told by its chat template, and the reading of such calls.

Names are those of vLLM's ``--tool-call-parser``, where it has one. Not for what is between the tags (`call_texts.py`)
or for what is done with calls (`serving/protocol/tools.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.models.text.call_texts import (
    Call,
    Schemas,
    calls_in_deepseek,
    calls_in_gemma,
    calls_in_json,
    calls_in_pairs,
    calls_in_python,
    calls_named_first,
    calls_of_elements,
    elements_are_cut,
    json_is_cut,
    pairs_are_cut,
    python_is_cut,
)


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A way to write calls.

    Attributes:
        opening, closing: tags around one or more calls. Without an opening tag they are the whole answer; without a
            closing one they go on to its end.
        read: the calls in a text between such tags; none where it holds anything else.
        marks: what a template of this format contains, all of it. inner: further tags between these, which are control
            tokens in some vocabularies.
        ends_itself: whether the end of a call can be told without the closing tag.
        is_cut: whether a text ends inside a value, so that a closing tag after it belongs to the value.
    """

    name: str
    opening: str
    closing: str
    read: Callable[[str, Schemas], list[Call]]
    marks: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    ends_itself: bool = True
    is_cut: Callable[[str], bool] = json_is_cut

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags."""
        return tuple(tag for tag in (self.opening, self.closing, *self.inner) if tag)


def _deepseek(name: str) -> str:
    return f"<｜{name.replace(' ', '▁')}｜>"


_TAG, _END = "<tool_call>", "</tool_call>"
HERMES = CallFormat("hermes", _TAG, _END, calls_in_json, marks=(_TAG,))
"""The one that is explained in words to models whose template has no place for tools."""
BARE_JSON = CallFormat("llama3_json", "", "", calls_in_json)
_LFM2 = CallFormat("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", calls_in_python, is_cut=python_is_cut)
"""Its templates do not tell of it."""
_TOLD = (
    CallFormat("gemma4", "<|tool_call>", "<tool_call|>", calls_in_gemma, ("<|tool_call>", "call:"), ('<|"|>',)),
    CallFormat("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", calls_of_elements, ("<minimax:",),
               is_cut=elements_are_cut),
    CallFormat("seed_oss", "<seed:tool_call>", "</seed:tool_call>", calls_of_elements, ("<seed:tool_call>",),
               is_cut=elements_are_cut),
    CallFormat("deepseek_v3", _deepseek("tool calls begin"), _deepseek("tool calls end"), calls_in_deepseek,
               (_deepseek("tool calls begin"),),
               (_deepseek("tool call begin"), _deepseek("tool sep"), _deepseek("tool call end"))),
    CallFormat("mistral", "[TOOL_CALLS]", "", calls_named_first, ("[TOOL_CALLS]",), ("[ARGS]", "[CALL_ID]")),
    CallFormat("nemotron_json", "<TOOLCALL>", "</TOOLCALL>", calls_in_json, ("<TOOLCALL>",)),
    CallFormat("cohere", "<|START_ACTION|>", "<|END_ACTION|>", calls_in_json, ("<|START_ACTION|>",)),
    CallFormat("qwen3_xml", _TAG, _END, calls_of_elements, (_TAG, "<function="), is_cut=elements_are_cut),
    CallFormat("glm45", _TAG, _END, calls_in_pairs, (_TAG, "<arg_key>"),
               ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), ends_itself=False,
               is_cut=pairs_are_cut),
    HERMES,
    CallFormat("granite", "<|tool_call|>", "<|/tool_call|>", calls_in_json, ("<|tool_call|>",)),
)  # fmt: skip
"""The first one fits whose marks a template has."""
CALL_FORMATS = {each.name: each for each in (*_TOLD, _LFM2, BARE_JSON)}


def call_format(template: str, has_token: Callable[[str], bool]) -> CallFormat:
    """The format of a model with a chat `template` that has a place for tools; `has_token` tells of its vocabulary."""
    for each in _TOLD:
        if all(mark in template for mark in each.marks):
            return each
    return _LFM2 if has_token(_LFM2.opening) else BARE_JSON
