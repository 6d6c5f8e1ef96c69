"""Overhead of the scheduler: CPU time of ``schedule`` and ``update`` per step, by batch size and policy.

No model runs: requests never end, and drafts are accepted at random (the same in every run). A pass of a small model
takes tens of milliseconds; the aim is to stay under 0.3 ms at 64 requests.

    python benchmarks/scheduler.py
    python benchmarks/scheduler.py --sizes 64 --steps 2000 --json

The last line of standard output is one JSON object.
"""

import argparse
import random
import time

from common import finish, median, show

from paceline.scheduling import PagePool, RequestState, Scheduler, SchedulerConfig, StepPlan, StepResult
from paceline.speculation import Fixed, Goodput, LearnedPrices, LengthPolicy
from paceline.speculation.prices import CPU_BALANCE, LearnedPass, roofline
from paceline.types import SamplingParams

PAGE_SIZE = 16
WARM_UP = 50
ACCEPTANCE = 0.7


def main() -> None:
    args = parse()
    figures = {name: {} for name in policies()}
    for size in args.sizes:
        for name, policy in policies().items():
            seconds = step_seconds(size, policy, args.steps)
            figures[name][size] = 1e3 * median(seconds)
    rows = [[size, *(figures[name][size] for name in figures)] for size in args.sizes]
    show(f"schedule + update, ms per step (median of {args.steps})", ["requests", *figures], rows)
    finish({"steps": args.steps, "milliseconds": figures})


def policies() -> dict[str, LengthPolicy]:
    """Fresh length policies by name."""
    passes = LearnedPass(roofline(CPU_BALANCE))
    for rows in range(1, 513, 7):
        passes.observe(rows, 0.010 + 0.0002 * rows)
    return {"plain": Fixed(0), "fixed": Fixed(4), "goodput": Goodput(LearnedPrices(passes))}


def step_seconds(size: int, policy: LengthPolicy, num_steps: int) -> list[float]:
    """Seconds of every step of `size` decoding requests."""
    most = (WARM_UP + num_steps) * 9
    limit = 2 * most
    pool = PagePool(size * (limit // PAGE_SIZE + 1), PAGE_SIZE)
    config = SchedulerConfig(max_num_batched_tokens=max(512, 4 * size), max_num_seqs=size, max_model_len=limit)
    scheduler = Scheduler(config, pool, policy)
    for number in range(size):
        scheduler.add(RequestState(str(number), [number] * 20, SamplingParams(max_tokens=most)))
    chance, seconds = random.Random(1), []
    for step in range(WARM_UP + num_steps):
        started = time.process_time()
        plan = scheduler.schedule(float(step))
        planned = time.process_time()
        results = answer(plan, chance)
        answered = time.process_time()
        scheduler.update(results, float(step))
        seconds.append(time.process_time() - answered + planned - started)
    scheduler.check_integrity()
    return seconds[WARM_UP:]


def answer(plan: StepPlan, chance: random.Random) -> list[StepResult]:
    """Step results with randomly accepted drafts, in place of a model's."""
    results = []
    for grant in plan.grants:
        accepted = 0
        while accepted < grant.draft_budget and chance.random() < ACCEPTANCE:
            accepted += 1
        tokens = tuple(chance.randrange(1000) for _ in range(accepted + 1)) if grant.needs_logits else ()
        rejected = accepted < grant.draft_budget
        results.append(
            StepResult(grant.request.request_id, grant.num_prefill_tokens, tokens, grant.draft_budget, rejected)
        )
    return results


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16, 64, 128], help="decoding requests")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
