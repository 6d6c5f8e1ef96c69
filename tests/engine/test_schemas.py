"""Random JSON schemas: every answer that ends is valid, and drafts change nothing."""

import json
import random
from typing import Any

import pytest

from paceline.types import SamplingParams
from tests.engine.conftest import run_all
from tests.fakes import Babbler

pytest.importorskip("llguidance")

NUM_SCHEMAS = 24
LEAVES = ("boolean", "null", "integer", "enum", "const", "string", "pattern")


def schema_of(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kind = rng.choice(LEAVES if depth > 1 else (*LEAVES, "object", "object", "array", "anyOf"))
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "integer":
        low = rng.randint(-20, 20)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)}
    if kind == "enum":
        return {"enum": rng.sample(["red", "green", 3, None, True, "a b", "e f"], 3)}
    if kind == "const":
        return {"const": rng.choice(["x", 7, False, ["a", 1]])}
    if kind == "string":
        return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 8)}
    if kind == "pattern":
        return {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]{2}$"}
    if kind == "array":
        return {"type": "array", "items": schema_of(rng, depth + 1), "minItems": 1, "maxItems": rng.randint(1, 3)}
    if kind == "anyOf":
        return {"anyOf": [schema_of(rng, depth + 1) for _ in range(2)]}
    names = rng.sample(["name", "size", "tags", "id", "owner"], rng.randint(1, 4))
    required = [name for name in names if rng.random() < 0.7]
    properties = {name: schema_of(rng, depth + 1) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def is_valid(value: Any, schema: dict[str, Any]) -> bool:
    """Written for these schemas only, and without the library under test."""
    if "anyOf" in schema:
        return any(is_valid(value, each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return any(json.dumps(value) == json.dumps(each) for each in schema.get("enum", [schema.get("const")]))
    kind = schema["type"]
    if kind == "object":
        known = schema["properties"]
        fits = isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(known)
        return fits and all(is_valid(each, known[name]) for name, each in value.items())
    if kind == "array":
        fits = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
        return fits and all(is_valid(each, schema["items"]) for each in value)
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        if "pattern" in schema:
            return isinstance(value, str) and len(value) in (5, 6, 7) and value[-3] == "-"
        return isinstance(value, str) and schema["minLength"] <= len(value) <= schema["maxLength"]
    return isinstance(value, bool) if kind == "boolean" else value is None


def params_of(schemas, temperature, **changes):
    return [
        SamplingParams(temperature=temperature, seed=i, max_tokens=250, structured_outputs={"json": schema}, **changes)
        for i, schema in enumerate(schemas)
    ]


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_every_answer_is_valid_and_the_same_with_drafts(engine_for, temperature):
    rng = random.Random(12)
    schemas = [schema_of(rng) for _ in range(NUM_SCHEMAS)]
    prompts = ["answer: "] * NUM_SCHEMAS
    plain = run_all(engine_for(), prompts, params_of(schemas, temperature, speculative=False))
    for output, schema in zip(plain, schemas, strict=True):
        assert output.finish_reason == "stop", (output.error, schema)
        assert is_valid(json.loads(output.text), schema), (output.text, schema)
    for speculative, drafter in (
        ({"method": "plain", "num_draft_tokens": 3, "policy": "fixed"}, Babbler()),
        ("suffix", None),
    ):
        drafted = run_all(engine_for(speculative, drafter), prompts, params_of(schemas, temperature))
        assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
        assert sum(output.outputs[0].num_forced_tokens for output in drafted) > NUM_SCHEMAS
