"""Ranks as threads of this process, for tests that need no processes: messages and sums go over gloo all the same."""

import threading
import traceback

from paceline.errors import WorkerDied
from paceline.models.cuda_executor.parallel import launch_model
from paceline.models.torch_executor.parallel import Elsewhere, elsewhere, run_worker


class ThreadWorkers:
    """`Workers` that are threads."""

    def __init__(self, assignments):
        self._words = []
        self._threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in assignments]
        for thread in self._threads:
            thread.start()

    def _run(self, assignment):
        try:
            run_worker(assignment)
        except BaseException:
            self._words.append(traceback.format_exc())

    def check(self):
        if self._words:
            raise self.obituary()

    def obituary(self, symptom=""):
        return WorkerDied("".join([symptom, *self._words]))

    def stop(self, grace=5.0):
        for thread in self._threads:
            thread.join(grace)


def on_threads(checkpoint, attention="by_position", dtype="float32", timeout=30, degrees=(2, 1), **options):
    """A model over two ranks, or those of other degrees (tensor, pipeline), the first of which is this thread."""
    with elsewhere(Elsewhere("127.0.0.1", ThreadWorkers)):
        return launch_model(
            checkpoint, *degrees, device="cpu", dtype=dtype, attention=attention, timeout=timeout, **options
        )  # fmt: skip
