"""Random JSON schemas of the kinds that people send, for tests and for `benchmarks/structured.py`.

Every answer to one is short: strings, lists and numbers are bounded, and nothing refers to itself.
"""

import itertools
import json
import random
from typing import Any

LEAVES = ("boolean", "null", "integer", "enum", "const", "string", "pattern", "format", "nullable")
BRANCHES = ("object", "object", "object", "array", "tuple", "anyOf", "reference")
NAMES = ("name", "size", "tags", "id", "owner", "größe", "unit price", "a/b", "created_at", "x")
WORDS = (
    "red",
    "green",
    'say "hi"',
    "naïve",
    "東京",
    "a b",
    "tab\tbed",
    "",
    "🚲 bike",
    "back\\slash",
    3,
    -7,
    2.5,
    None,
    True,
)
PATTERNS = ("^[a-c]{2,4}-[0-9]{2}$", "^(yes|no|perhaps)$", "^[A-Z][a-z]{1,6}$", "^\\d{3}\\.\\d$")


def schemas(count: int, seed: int = 12, ascii_only: bool = False) -> list[dict[str, Any]]:
    """`count` schemas, the same ones for the same seed; `ascii_only` for tokenizers that know nothing else."""
    rng = random.Random(seed)
    made = (_schema(rng) for _ in itertools.count())
    return list(itertools.islice((s for s in made if not ascii_only or _spelled(s).isascii()), count))


def _spelled(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False)


def _schema(rng: random.Random) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    schema = _part(rng, 0, definitions)
    return schema | ({"$defs": definitions} if definitions else {})


def _part(rng: random.Random, depth: int, definitions: dict[str, Any]) -> dict[str, Any]:
    kind = rng.choice(LEAVES if depth > 2 else BRANCHES if depth == 0 else (*LEAVES, *BRANCHES))

    def inner() -> dict[str, Any]:
        return _part(rng, depth + 1, definitions)

    if kind == "object":
        names = rng.sample(NAMES, rng.randint(1, 5))
        required = [name for name in names if rng.random() < 0.7]
        properties = {name: inner() for name in names}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        low = rng.randint(0, 2)
        return {"type": "array", "items": inner(), "minItems": low, "maxItems": low + rng.randint(0, 2)}
    if kind == "tuple":
        items = [inner() for _ in range(rng.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if kind == "anyOf":
        return {"anyOf": [inner() for _ in range(rng.randint(2, 3))]}
    if kind == "reference":
        name = f"part{len(definitions)}"
        definitions[name] = {}  # takes the name before those inside
        definitions[name] = inner()
        return {"$ref": f"#/$defs/{name}"}
    return _leaf(rng, kind)


def _leaf(rng: random.Random, kind: str) -> dict[str, Any]:
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "integer":
        low = rng.choice((0, -5, 1, 10, -1000, 999_999))
        return {"type": "integer", "minimum": low, "maximum": low + rng.choice((0, 3, 300, 100_000))}
    if kind == "enum":
        return {"enum": rng.sample(WORDS, rng.randint(1, 4))}
    if kind == "const":
        return {"const": rng.choice((*WORDS, ["a", 1], {"k": False}))}
    if kind == "string":
        low = rng.randint(0, 3)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 9)}
    if kind == "nullable":
        return {"type": ["string", "null"], "maxLength": rng.randint(1, 8)}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    return {"type": "string", "format": rng.choice(("date", "ipv4", "uuid"))}


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    """Whether `text` is JSON that follows `schema`, by a library other than the one that made it."""
    from jsonschema import Draft202012Validator

    try:
        value = json.loads(text)
    except ValueError:
        return False
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).is_valid(value)
