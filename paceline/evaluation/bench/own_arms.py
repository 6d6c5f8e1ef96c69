"""Arms from the user's options: drafters by name, configurations as JSON, URLs; plain decoding is there twice."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from paceline.engine.llm import LLM
from paceline.errors import InvalidParameter
from paceline.evaluation.bench.arms import WARM_UP, Arm, EngineArm
from paceline.evaluation.bench.server_arm import EndpointArm
from paceline.evaluation.endpoint import connect_to

PLAIN, AGAIN = "plain", "plain (again)"
_PLAIN_SPEC = {"method": "plain", "num_draft_tokens": 0}


def specs_of(
    drafts: Sequence[str], lengths: Sequence[int] = (), spec_texts: Sequence[str] = (), taken: Collection[str] = (),
    **shared: Any,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Label to speculative configuration.

    Args:
        drafts: names of drafters; ``NAME:MODEL`` adds a draft model.
        lengths: draft lengths, one arm for each; without any, the drafter's default.
        spec_texts: ``LABEL={...}``, configurations as JSON.
        taken: labels of other arms.
        shared: default fields of all configurations, e.g. ``rule="p/q"``.

    Raises:
        InvalidParameter: a text cannot be parsed, or a label occurs twice.
    """
    specs: dict[str, dict[str, Any]] = {}
    for draft in drafts:
        method, _, model = draft.partition(":") if not _is_class(draft) else (draft, "", "")
        spec: dict[str, Any] = {"method": method} | ({"model": model} if model else {})
        for length in lengths or [None]:
            label = draft if length is None else f"{draft} k={length}"
            _check_free("drafts", label, (*specs, *taken))
            specs[label] = spec if length is None else spec | {"num_draft_tokens": length}
    for text in spec_texts:
        label, brace, config = text.partition("={")
        _check_free("spec", label, (*specs, *taken))
        try:
            specs[label] = json.loads(brace[1:] + config)
        except ValueError:
            raise InvalidParameter(
                "spec", f"{text!r} cannot be read", 'write e.g. \'bushy={"method": "suffix"}\''
            ) from None
    return {
        label: {key: value for key, value in shared.items() if value is not None} | spec
        for label, spec in specs.items()
    }


def own_arms(llm: LLM, specs: Mapping[str, Mapping[str, Any]], raw: bool = False) -> tuple[list[Arm], dict[str, str]]:
    """(arms of plain decoding, twice, and of every configuration that works; label to error message of the others)."""
    arms: list[Arm] = [EngineArm(llm, label, PLAIN, _PLAIN_SPEC, raw) for label in (PLAIN, AGAIN)]
    skipped: dict[str, str] = {}
    for label, spec in specs.items():
        try:
            llm.drafting_with(spec).generate([[1] * 8], WARM_UP)
            arms.append(EngineArm(llm, label, PLAIN, spec, raw))
        except Exception as error:  # a drafter that fails must not stop the others
            skipped[label] = str(error)
    return arms, skipped


def url_arms(
    urls: Sequence[str], plain_urls: Sequence[str], raw: bool = False, own: Collection[str] = ()
) -> list[EndpointArm]:
    """Arms of servers; the baseline of each is its own plain server if one is given, else plain decoding here.

    Args:
        urls, plain_urls: ``LABEL=URL`` or ``LABEL=URL#MODEL``; a plain server has the label of its speculating server.
        own: labels of the arms that run here, including plain decoding; empty if nothing runs here.

    Raises:
        InvalidParameter: a text cannot be parsed, a plain URL has no partner, an arm has no baseline, or a label occurs
            twice.
    """
    named, plain = _addresses("url", urls, own), _addresses("plain_url", plain_urls)
    for label in plain:
        if label not in named:
            raise InvalidParameter("plain_url", f"{label!r} has no --url", f"name it --url {label}=...")
        for each in (PLAIN, AGAIN):
            _check_free("plain_url", f"{label} {each}", (*named, *own))
    arms: list[EndpointArm] = []
    for label, url in named.items():
        base = PLAIN
        if label in plain:
            base, server = f"{label} {PLAIN}", connect_to(plain[label], "plain_url")
            arms += [EndpointArm(server, base, base, raw), EndpointArm(server, f"{label} {AGAIN}", base, raw)]
        elif not own:
            raise InvalidParameter("url", f"{label!r} has nothing to be compared with", f"add --plain-url {label}=URL")
        arms.append(EndpointArm(connect_to(url), label, base, raw))
    return arms


def bases_of(arms: Sequence[Arm]) -> tuple[dict[str, str], dict[str, str]]:
    """(label of each arm to its baseline, baseline to its repetition)."""
    bases = {arm.label: arm.base for arm in arms}
    again = {base: f"{base} (again)" for base in bases.values() if f"{base} (again)" in bases}
    return bases, again


def _addresses(field: str, texts: Sequence[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Label to address."""
    found: dict[str, str] = {}
    for text in texts:
        label, equals, url = text.partition("=")
        if not label or not equals or "://" not in url:
            raise InvalidParameter(field, f"{text!r} is not LABEL=URL", "write e.g. vllm=http://localhost:8000")
        _check_free(field, label, (*found, *taken))
        found[label] = url
    return found


def _check_free(field: str, label: str, taken: Collection[str]) -> None:
    """Raise InvalidParameter if `label` is the label of another arm."""
    if label in taken:
        raise InvalidParameter(field, f"{label!r} is the name of another arm too", "give each a name of its own")


def _is_class(draft: str) -> bool:
    """Whether `draft` is the ``package.module:ClassName`` of a user's drafter."""
    module, _, name = draft.partition(":")
    return "." in module or name[:1].isupper()
