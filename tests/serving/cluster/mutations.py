"""Damaged case, plan, trace, profile and benchmark files, drawn from a seed, and what must become of each."""

import copy
import json
from random import Random
from typing import Any, Literal, NamedTuple

Verdict = Literal["refused", "same", "any"]
"""Refused with the field's name; read like the undamaged file; or either, but never a traceback or NaN."""

CASE: dict[str, Any] = {
    "name": "own",
    "num_devices": 2,
    "mem_budget": 4.5e9,
    "models": [
        {"name": "a", "type": "small", "rate": 1.0, "cv": 3.0, "slo": 0.3, "path": "weights"},
        {"name": "b", "type": "small", "rate": 0.5, "slo": 0.3},
    ],
    "profiles": {
        "small": [
            {"op": 1, "pp": 1, "latency": [0.1], "weight_mem": [3e9], "batch_latency": {"2": [0.15]}},
            {"op": 1, "pp": 2, "latency": [0.051, 0.051], "weight_mem": [1.5e9, 1.5e9]},
        ]
    },
    "arrivals": "arrivals.csv",
    "n_requests": 40,
}
PLAN: dict[str, Any] = {
    "case": "own",
    "groups": [[1, 2, [0, 1]]],
    "models": ["a", "b"],
    "serving": [
        {"name": "a", "path": "weights", "slo": 0.3, "engine": {"dtype": "int8"}},
        {"name": "b", "num_tokens": 8, "prompt_tokens": 16},
    ],
    "stage_seconds": [[[0.05, 0.05], [0.05, 0.05]]],
    "overhead": 0.011,
}
PROFILE: dict[str, Any] = {
    "format": "paceline-profile",
    "version": 1,
    "model": "m",
    "fingerprint": "f",
    "dtype": "int8",
    "executor": "numba",
    "threads": 2,
    "machine": "here",
    "seconds": {"0": {"1": 0.01, "8": 0.02}},
    "prefill_seconds": {"0": {"1": 0.01, "64": 0.05}},
    "segment_seconds": {"0": 0.001},
    "step_overhead": 0.001,
}
TOKENS: dict[str, Any] = {
    "seconds": {"0": {"1": 0.01, "16": 0.02}, "512": {"1": 0.012}},
    "prefill_seconds": {"0": {"16": 0.02, "256": 0.1}},
    "segment_seconds": {"0": 0.0001},
    "step_overhead": 0.001,
    "seats": 8,
    "token_budget": 128,
}
TOKEN_CASE: dict[str, Any] = {
    "num_devices": 2,
    "mem_budget": 2e9,
    "models": [
        {"name": "a", "type": "p", "rate": 2.0, "slo_first": 1.0, "slo_token": 0.05, "prompt_tokens": 40,
         "output_tokens": 20, "length_cv": 0.5},
        {"name": "b", "type": "p", "rate": 1.0, "slo": 2.0, "prompt_tokens": 10, "output_tokens": 30},
    ],
    "profiles": {"p": [{"op": 1, "pp": 1, "weight_mem": [1e9], "kv_bytes": 1000, "tokens": TOKENS}]},
    "duration": 15,
    "seed": 1,
}  # fmt: skip
TOKEN_PLAN: dict[str, Any] = {
    "groups": [[1, 1, [0]], [1, 1, [1]]],
    "models": ["a", "b"],
    "serving": [{"name": "a", "path": "w", "slo_first": 1.0, "num_tokens": 20}, {"name": "b", "slo": 2.0}],
    "pass_profiles": [[TOKENS], [TOKENS]],
    "overhead": 0.011,
}
BENCHMARK: dict[str, Any] = {
    "completed": 100,
    "duration": 50.0,
    "total_input_tokens": 20_000,
    "total_output_tokens": 6_400,
    "mean_ttft_ms": 100.0,
    "mean_tpot_ms": 10.0,
}
KINDS = ("case", "plan", "profile", "trace", "token-case", "token-plan", "benchmark")
FILES = {
    "case": CASE, "plan": PLAN, "profile": PROFILE, "token-case": TOKEN_CASE, "token-plan": TOKEN_PLAN,
    "benchmark": BENCHMARK,
}  # fmt: skip
ROWS = [f"{0.5 * i:.2f},{i % 2}" for i in range(40)]

REQUIRED = {
    "case": {"num_devices", "mem_budget", "models", "profiles", "arrivals", "type", "latency", "weight_mem"},
    "plan": {"groups", "name"},
    "profile": set(PROFILE) - {"segment_seconds", "step_overhead"},
    "token-case": {"num_devices", "mem_budget", "models", "profiles", "duration", "type", "weight_mem", "tokens"},
    "token-plan": {"groups"},
    "benchmark": set(BENCHMARK),
}
WRONG_ANYWHERE: list[Any] = [[], {}, True, float("nan"), float("inf"), float("-inf"), [[]], {"x": 1}]
"""No number, text, list or object of the files may be replaced by all of these: see `_wrong`."""
ODD_NUMBERS: list[Any] = [0, -1, 1.5, 1e-300, 1e308, -1e308, 2**70, 10**400, "1", "x", "", None, "\u0000", "[/red]x"]


class Damaged(NamedTuple):
    """A file's text, what was done to it, and what must become of it."""

    kind: str
    text: str
    how: str
    verdict: Verdict


def damaged(seed: int) -> Damaged:
    """One file of one of `KINDS`."""
    random = Random(seed)
    kind = KINDS[seed % len(KINDS)]
    if kind == "trace":
        return Damaged(kind, *_damage_rows(random))
    whole = FILES[kind]
    if random.random() < 0.15:
        return Damaged(kind, *_damage_text(random, json.dumps(whole)))
    return Damaged(kind, *_damage_values(random, copy.deepcopy(whole), REQUIRED[kind]))


def _damage_text(random: Random, text: str) -> tuple[str, str, Verdict]:
    at = random.randrange(1, len(text) - 1)
    if random.random() < 0.5:
        return text[:at], f"cut at {at}", "refused"
    return text[:at] + chr(random.randrange(1, 0x2000)) + text[at + 1 :], f"character {at} changed", "any"


def _damage_values(random: Random, values: dict[str, Any], required: set[str]) -> tuple[str, str, Verdict]:
    """A key dropped, misspelt or said twice, or a value replaced."""
    holders = list(_objects(values))
    holder = random.choice(holders)
    fixed = [key for key in holder if not key.isdigit() and key not in ("small",)]
    deed = random.choice(("drop", "misspell", "repeat", "replace", "replace", "replace"))
    if deed == "replace" or not fixed:
        return _replace(random, values)
    key = random.choice(fixed)
    if deed == "drop":
        del holder[key]
        return json.dumps(values), f"no {key}", "refused" if key in required else "any"
    if deed == "misspell":
        holder[key.upper()] = holder.pop(key)
        return json.dumps(values), f"{key} in capitals", "refused"
    text = json.dumps(values)
    again = f'"{key}": {json.dumps(holder[key])}'
    is_known = text.count(again) == 1
    return text.replace(again, f"{again}, {again}"), f"{key} twice", "refused" if is_known else "any"


def _replace(random: Random, values: dict[str, Any]) -> tuple[str, str, Verdict]:
    path = random.choice(list(_paths(values)))
    holder = values
    for step in path[:-1]:
        holder = holder[step]
    old = holder[path[-1]]
    wrong = random.random() < 0.5
    new = random.choice(WRONG_ANYWHERE if wrong else ODD_NUMBERS)
    holder[path[-1]] = new
    name = next(step for step in reversed(path) if isinstance(step, str))
    return json.dumps(values), f"{path}: {new!r}", "refused" if wrong and _wrong(name, old, new) else "any"


def _wrong(name: str, old: Any, new: Any) -> bool:
    """Whether `new` cannot stand where `old` stood. What is empty may mean that nothing was given."""
    if name in ("policies", "note", "case"):
        return False
    if isinstance(old, list | dict):
        return new is True or isinstance(new, float)
    return True


def _objects(value: Any):
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _objects(each)
    elif isinstance(value, list):
        for each in value:
            yield from _objects(each)


def _paths(value: Any, at: tuple = ()):
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield (*at, key)
        yield from _paths(each, (*at, key))


def _damage_rows(random: Random) -> tuple[str, str, Verdict]:
    """A CSV of arrivals with one thing changed."""
    rows, header = list(ROWS), ["time,model"]
    row = random.randrange(1, len(rows))
    time, model = rows[row].split(",")
    deeds: dict[str, tuple[str, Verdict]] = {
        "text": ("soon,0", "refused"), "column": (time, "refused"), "more": (f"{time},{model},7", "refused"),
        "comma": (f"1,5,{model}", "refused"),
        "model": (f"{time},9", "refused"), "huge": (f"{time},{10**11}", "refused"),
        "share": (f"{time},0.5", "refused"), "negative": (f"{time},-1", "refused"), "nan": (f"nan,{model}", "refused"),
        "infinite": (f"inf,{model}", "refused"), "order": (f"0.0,{model}", "refused" if row > 1 else "any"),
        "blank": (rows[row] + "\n", "same"), "spaces": (f" {time} , {'ab'[int(model)]} ", "same"),
    }  # fmt: skip
    deed = random.choice([*deeds, "no header", "epoch", "milliseconds", "past", "cut", "mark", "windows"])
    if deed in deeds:
        rows[row], verdict = deeds[deed]
        return "\n".join(header + rows) + "\n", deed, verdict
    shifts = {"epoch": 1.7e9, "milliseconds": 1.7e12, "past": -10.0}
    if deed in shifts:
        moved = [f"{float(r.split(',')[0]) + shifts[deed]:.2f},{r.split(',')[1]}" for r in rows]
        return "\n".join(header + moved) + "\n", deed, "same" if deed == "epoch" else "refused"
    text = "\n".join(rows if deed == "no header" else header + rows) + "\n"
    if deed == "cut":
        return text[: random.randrange(len(text) - 6)], deed, "refused"
    ends = {"mark": "\ufeff" + text, "windows": text.replace("\n", "\r\n")}
    return ends.get(deed, text), deed, "same"
