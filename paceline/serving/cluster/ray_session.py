"""Ray itself: started for this process alone, or joined where it runs already, and left again.

Not for what runs on it (`ray_groups.py`).
"""

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from paceline.errors import InvalidParameter, first_line
from paceline.extras import needs_ray

with needs_ray():
    import ray
    from ray._private import ray_constants
    from ray._private.services import canonicalize_bootstrap_address_or_die
    from ray.exceptions import RayError

OBJECT_STORE_BYTES = 80 * 2**20
"""Size of Ray's object store, about its minimum: only requests and answers pass through it."""
LISTENING = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's variable, for Linux too despite its name: 0 keeps it to 127.0.0.1, 1 lets other machines reach it."""
CONNECT_SECONDS = 5.0
"""Timeout in seconds for connecting to the head of an existing Ray cluster."""


def start_ray(num_cpus: int, num_gpus: int = 0) -> None:
    """Start a Ray that only this process and its children can reach: at 127.0.0.1, with a token kept in memory only.

    Environment variables that are already set take precedence: RAY_AUTH_MODE (disabled), RAY_AUTH_TOKEN,
    RAY_AUTH_TOKEN_PATH, `LISTENING`.

    Args:
        num_gpus: GPUs of the plan's groups.

    Raises:
        InvalidParameter: this machine has fewer GPUs.
    """
    if os.environ.setdefault(LISTENING, "0") == "0":
        ray_constants.ENABLE_RAY_CLUSTER = False  # Ray reads the variable only when it is imported
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own default gives way to all else on the machine
    try:
        with _interrupted_afterwards():
            ray.init(
                address="local",  # else Ray joins one that it finds on this machine
                num_cpus=num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=OBJECT_STORE_BYTES,
            )
    except Exception as error:  # Ray's own say "Exception" where a node does not start in time
        problem = f"Ray does not start ({first_line(error)})"
        raise InvalidParameter("cluster", problem, "try again when the machine is less busy") from error
    found = ray.cluster_resources().get("GPU", 0.0)
    if found < num_gpus:
        remedy = "plan for fewer devices, or join a Ray that has them (--ray-address)"
        raise InvalidParameter("device", f"{num_gpus} GPUs are planned for, this machine has {found:g}", remedy)


def join_ray(address: str) -> None:
    """Connect to an existing Ray cluster; reservations are released when this process disconnects."""
    try:
        found = canonicalize_bootstrap_address_or_die(address) if address == "auto" else address
    except ConnectionError as error:
        raise _unreachable(address, error) from error
    _check_listening(found)
    try:
        with _interrupted_afterwards():
            ray.init(address=found, log_to_driver=False, logging_level=logging.ERROR)
    except (RayError, ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise _unreachable(address, error) from error


def stop_ray() -> None:
    """Shut down this process's Ray, or its connection to an existing cluster."""
    with suppress(RayError):
        ray.shutdown()


@contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    """Hold back Ctrl-C until the end: interrupted while it connects, Ray crashes this process when it is shut down.

    What it then does is what it did before: a program that was started with Ctrl-C ignored goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def _check_listening(address: str) -> None:
    """Raise InvalidParameter unless something listens at `address`; Ray itself would retry silently for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16 or "://" in address:
        what = "is a client's" if "://" in address else "is no host:port"
        raise InvalidParameter("ray_address", f"{address!r} {what}", "give host:port of Ray's head, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:  # the latter: a name that no host can have
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> InvalidParameter:
    problem = f"{address!r} cannot be reached ({first_line(error)})"
    remedy = "give host:port of Ray's head, start this on one of its nodes, and set RAY_AUTH_TOKEN if it has one"
    return InvalidParameter("ray_address", problem, remedy)
