"""Three hundred JSON schemas: every answer is valid, and drafts change nothing, greedy or with a seed in turns."""

import pytest

from paceline.types import SamplingParams
from tests.engine.conftest import run_all
from tests.fakes import Babbler
from tests.schemas import is_valid, schemas

pytest.importorskip("llguidance")
pytest.importorskip("jsonschema")

SCHEMAS = schemas(300, ascii_only=True)
PROMPTS = ["answer: "] * len(SCHEMAS)


def params_of(**changes):
    return [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=400, structured_outputs={"json": schema}, **changes)
        for i, schema in enumerate(SCHEMAS)
    ]


def test_every_answer_is_valid_and_the_same_with_drafts(engine_for):
    plain = run_all(engine_for(), PROMPTS, params_of(speculative=False))
    for output, schema in zip(plain, SCHEMAS, strict=True):
        assert output.finish_reason == "stop", (output.finish_reason, output.error, output.text, schema)
        assert is_valid(output.text, schema), (output.text, schema)
    for speculative, drafter in (
        ({"method": "plain", "num_draft_tokens": 3, "policy": "fixed"}, Babbler()),
        ("suffix", None),
    ):
        drafted = run_all(engine_for(speculative, drafter), PROMPTS, params_of())
        assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
        assert sum(output.outputs[0].num_forced_tokens for output in drafted) > len(SCHEMAS)
