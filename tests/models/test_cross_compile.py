"""Kernels for processors that are not here build, with the instructions that we mean (`cross_compile.py`)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import ir

from paceline.models.numba_executor import isa
from paceline.models.numba_executor import vector as v

ARM, X86 = "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"
ROOT = Path(__file__).parents[2]
_EIGHT_ROWS = 8 * (8 + 1) // 2 * 8 * 4
"""Quarters of registers that 1 to 8 rows multiply in a group of 32, eight steps each."""


def built(triple, features, *wanted):
    command = [sys.executable, "-m", "tests.models.cross_compile", triple, features, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("features", "dot", "times"),
    [
        ("neon,dotprod,i8mm", "usdot", {"Q8_0": 1, "Q4_K": 1}),
        ("neon,dotprod", "sdot", {"Q4_K": 1, "Q8_0": 1.25, "MXFP4": 1}),
    ],
)
def test_blocks_on_arm_are_multiplied_by_its_dot_products(features, dot, times):
    """With 8-bit codes and signed products only, one of five takes an offset back."""
    found = built(ARM, features, *(f"tile:{form}" for form in times))
    assert {name: counts[dot] for name, counts in found.items()} == {
        f"tile:{form}": each * _EIGHT_ROWS for form, each in times.items()
    }
    assert "MXFP4" not in times or found["tile:MXFP4"].get("tbl", 0) > 0


def test_an_arm_without_dot_products_and_a_plain_x86_multiply_blocks_too():
    for found in (*built(ARM, "neon", "few:Q6_K", "few:IQ4_XS").values(), *built(X86, "", "few:Q6_K").values()):
        assert not {"sdot", "usdot", "vpdpbusd"} & found.keys() and sum(found.values()) > 1000


def test_whole_passes_build_for_arm():
    """Multiply-adds in vectors, halves widened by an instruction, and nothing that needs a library."""
    passes = built(ARM, "neon,dotprod", "forward:gguf:float16")
    for name, found in passes.items():
        assert found["fmla"] > 100, name
        assert found["fcvtl"] > 0


@pytest.mark.parametrize(
    ("machine", "processor", "features"),
    [
        ("arm64", "apple-m1", {"neon", "dotprod"}), ("arm64", "apple-m4", {"neon", "dotprod", "i8mm"}),
        ("aarch64", "cortex-a53", {"neon"}), ("ARM64", "generic", {"neon"}), ("x86_64", "znver4", set()),
    ],
)  # fmt: skip
def test_features_that_a_processors_name_stands_for(machine, processor, features):
    assert isa._implied(machine, processor) == features


@pytest.mark.parametrize(("processor", "past"), [("znver5", True), ("znver4", False), ("sapphirerapids", False)])
def test_weights_are_read_past_the_second_cache_where_that_was_faster(processor, past, monkeypatch):
    monkeypatch.setattr(v.cpu_target.target_context.codegen(), "_get_host_cpu_name", lambda: processor)
    assert isa.reads_past_second_cache(v.cpu_target.target_context) == past
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()]), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    for once in (True, False):
        v.prefetch_ir(builder, function.args[0], once)
    first, second = (call.args[2].constant for call in function.blocks[0].instructions)
    assert (first == 0, second) == (past, 2)
