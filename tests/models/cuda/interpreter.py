"""Triton's interpreter, with its language replaced once.

It replaces what kernels find in Triton's language before each kernel, and again before each function that a kernel
calls, for which it looks through the whole language. That took more than a third of the time of the tests of kernels.
"""

from triton.runtime import interpreter

_replace = interpreter._patch_lang
_done = set()


def _replace_once(function):
    """As `_replace` for all functions of a module, and nothing is put back: nobody here compiles in this process."""
    module = function.__globals__["__name__"]
    if module not in _done:
        _done.add(module)
        _replace(function)
    return interpreter._LangPatchScope()


def keep_language_replaced():
    interpreter._patch_lang = _replace_once
