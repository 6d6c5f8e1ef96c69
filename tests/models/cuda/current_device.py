"""A stand-in for the device that is current: Triton launches there, whatever its arguments."""

from contextlib import contextmanager


class CurrentDevice:
    """Takes the place of `on_device`; `name` is that of the current device, which is another one outside of it."""

    def __init__(self):
        self._names = ["another"]

    @property
    def name(self):
        return self._names[-1]

    @contextmanager
    def __call__(self, device):
        self._names.append(str(device))
        yield
        self._names.pop()
