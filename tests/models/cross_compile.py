"""Compiles kernels for a processor that is not here, as far as machine code: `python -m tests.models.cross_compile`.

Numba only generates code for the machine that it runs on, but what it hands to LLVM up to that point is the same
everywhere. So kernels are lowered with another processor's features pretended, and LLVM, which comes with all its
processors, makes assembly of that. In a process of its own: what was lowered for this machine must not be found.

Prints, for each kernel asked for, the mnemonics in its assembly and how often each stands there, as JSON.
"""

import json
import re
import sys
from collections import Counter
from unittest import mock

import llvmlite.binding as llvm
from numba import njit, types
from numba.core.compiler_lock import global_compiler_lock

from paceline.models.compiled.link_only import LinkOnlyCompiler
from paceline.models.numba_executor import isa
from paceline.models.numba_executor.blocks import kernels, product

OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True, "no_cpython_wrapper": True}
FEATURES = {
    "aarch64-unknown-linux-gnu": {"neon": "+neon,+fullfp16", "dotprod": "+dotprod", "i8mm": "+i8mm"},
    "x86_64-unknown-linux-gnu": {"avx2": "+avx2,+fma,+f16c"},
}
"""Per machine: the features that kernels ask for, and LLVM's names of what comes with each."""


def lowered(function, signature) -> str:
    """`function` and all that it calls as LLVM code that nobody has optimised."""
    compiled = njit(**OPTIONS, pipeline_class=LinkOnlyCompiler)(function)
    compiled.compile(signature)
    (result,) = compiled.overloads.values()
    with global_compiler_lock:
        result.library._ensure_finalized()  # links what it calls
    return str(result.library._final_module)


def assembly(code: str, triple: str, features: str) -> str:
    """What LLVM makes of `code` for that machine."""
    machine = llvm.Target.from_triple(triple).create_target_machine(features=features, opt=3, reloc="pic")
    module = llvm.parse_assembly(re.sub(r"^target (triple|datalayout) = .*$", "", code, flags=re.MULTILINE))
    module.triple, module.data_layout = triple, str(machine.target_data)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    module.verify()
    return machine.emit_assembly(module)


def mnemonics(text: str) -> Counter:
    return Counter(re.findall(r"^\s+([a-z][\w.]*)\b", text, flags=re.MULTILINE))


def tile_of(form: str):
    """The kernel that multiplies 1 to 8 rows with blocks of that kind, and its signature."""
    with mock.patch.object(kernels, "_compiled", lambda function, signature: (function, signature)):
        return kernels.make_tile(form)


def few_of(form: str):
    """As `tile_of` for 2 rows alone, which takes a tenth of the time."""

    def few(groups, codes, scales, halves, totals, panel, bias, out, stride, add):
        kernels._multiply(2, form, groups, codes, scales, halves, totals, panel, bias, out, stride, add)

    return few, types.void(*kernels.TILE_SIGNATURE.args[1:])


def forward_of(dtype: str, kept: str):
    """The pass of a model of that dtype with keys and values kept so, and its signature; nothing is run."""
    from numba import typeof

    from paceline.models.numba_executor import executor
    from paceline.models.numba_executor.ahead import _Blank, _in_memory
    from paceline.models.numba_executor.forward import forward
    from paceline.models.numba_executor.team import Team, new_slot
    from paceline.models.rows import Part, build_rows

    taken = []
    with (
        mock.patch.object(Team, "run", lambda self, kernel, *args: taken.append(args)),
        mock.patch.object(product, "addresses", lambda form: (0, 0)),
        mock.patch.object(executor, "machine_code", lambda *_: None),
    ):
        model = executor.NumbaModel(_Blank(), dtype, 1, kv_cache_dtype=kept, load=_in_memory)
        model.forward(build_rows([Part([0], 0, [0])]), model.new_cache(1))
    return forward.py_func, (typeof(new_slot()), typeof(taken[0]))


def main(triple: str, pretended: str, *wanted: str) -> None:
    """`pretended` are features with commas; `wanted` is ``tile:Q4_K``, ``few:Q4_K`` or ``forward:gguf:float16``."""
    make = {"tile": tile_of, "few": few_of, "forward": forward_of}
    names = [name for name in pretended.split(",") if name]
    isa.has_feature = lambda context, feature: feature in names
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    found = {}
    for what in wanted:
        kind, *rest = what.split(":")
        function, signature = make[kind](*rest)
        features = ",".join(FEATURES[triple][name] for name in names)
        found[what] = mnemonics(assembly(lowered(function, signature), triple, features))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
