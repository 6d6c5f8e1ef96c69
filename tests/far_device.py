"""A simulated device: its tensors hold real numbers, and operations with tensors of other devices raise.

`far_device()` lends it: while it is on, torch's device `FAR` is a second place in ordinary memory, with the manners of
a GPU. An operation over tensors of both places raises, except where CUDA allows it (single numbers, indices from the
CPU); arrays must be fetched first. So code for GPUs is run without one, to find what was made in the wrong place, and
on request what would wait for the device: indices from the CPU, and numbers or indices that are read from tensors.
"""

from contextlib import contextmanager
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

FAR = torch.device("meta")
"""Torch's name for it, one that no code here uses otherwise once weights are loaded."""
_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
_WAITING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}
_INDEXED = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default}


class FarTensor(torch.Tensor):
    """A tensor there; `near` is where its numbers are."""

    near: torch.Tensor

    @staticmethod
    def __new__(cls, near):
        made = torch.Tensor._make_wrapper_subclass(
            cls, near.shape, near.stride(), near.storage_offset(), dtype=near.dtype, device=FAR,
            requires_grad=near.requires_grad,
        )  # fmt: skip
        made.near = near
        return made

    def tolist(self):
        return self.near.tolist()

    def __reduce_ex__(self, protocol):
        return self.near.detach().__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Far(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _FromNumbers(TorchFunctionMode):
    """Tensors made of arrays and lists, which torch does not dispatch where they are made."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        named = kwargs or {}
        if func in (torch.as_tensor, torch.tensor) and named.get("device") == FAR:
            made = func(*args, **{name: value for name, value in named.items() if name != "device"})
            return made.to(FAR)
        return func(*args, **named)


_may_wait = True


def _run(func, args, kwargs):
    tensors = []
    near, far_kwargs = _near(args, tensors), {name: _near(value, tensors) for name, value in kwargs.items()}
    is_far = any(isinstance(tensor, FarTensor) for tensor in tensors)
    asked = kwargs.get("device")
    if is_far and func not in _COPIES:
        strangers = [tensor for tensor in tensors if not isinstance(tensor, FarTensor) and tensor.ndim]
        if func in _INDEXED and _may_wait:
            strangers = [one for one in strangers if one.dtype not in (torch.long, torch.bool)]
        if strangers:
            shapes = [tuple(one.shape) for one in strangers]
            raise RuntimeError(f"Expected all tensors to be on the same device: {func} met {shapes} of the CPU")
        if func in _WAITING and not _may_wait:
            raise RuntimeError(f"{func} would wait for the device")
    if asked == FAR:
        far_kwargs["device"] = torch.device("cpu")
    result = func(*near, **far_kwargs)
    if _writes_to_first(func):
        return args[0]
    goes_far = asked == FAR if asked is not None else is_far
    return _far(result) if goes_far else result


def _near(value, tensors):
    """`value`, or what lies in it, in ordinary memory; its tensors, wherever they are, are added to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value.near if isinstance(value, FarTensor) else value
    return type(value)(_near(one, tensors) for one in value) if type(value) in (list, tuple) else value


def _far(value):
    """`value`, or what lies in it, with its tensors there."""
    if isinstance(value, torch.Tensor):
        return FarTensor(value)
    return type(value)(map(_far, value)) if type(value) in (list, tuple) else value


def _writes_to_first(func):
    """Whether an operation is in place; `__rshift__`, which ends as such ones do, is not."""
    first = func._schema.arguments[:1]
    return bool(first) and first[0].alias_info is not None and first[0].alias_info.is_write


def _enter(mode):
    mode.instead = torch.no_grad()
    mode.instead.__enter__()


def _exit(mode, *error):
    mode.instead.__exit__(*error)


@contextmanager
def without_waiting():
    """Within a `far_device`: what would wait for the device raises, except fetching whole tensors."""
    global _may_wait
    _may_wait = False
    try:
        yield
    finally:
        _may_wait = True


def may_wait(call):
    """`call`, which may wait for the device even where nothing else may."""

    def calls(*given, **named):
        global _may_wait
        before, _may_wait = _may_wait, True
        try:
            return call(*given, **named)
        finally:
            _may_wait = before

    return calls


@contextmanager
def far_device():
    """While it is on, `FAR` has numbers; inference mode, which knows no wrapped tensors, is without gradients only."""
    with (
        mock.patch.multiple(torch.inference_mode, __enter__=_enter, __exit__=_exit),
        _FromNumbers(),
        _Far(),
    ):
        yield FAR
