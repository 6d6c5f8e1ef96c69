"""How plans look: tables for people, one object for scripts, a chart of the search."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from paceline.cli.terminal.streams import number_of
from paceline.errors import InvalidParameter
from paceline.placement import Case, Cluster, PlacedModel, Placement, SimulationResult
from paceline.placement.coplacement import CoPlan
from paceline.placement.model import NO_SLO
from paceline.placement.search import Plan
from paceline.placement.search.disaggregated import SeparateRoles
from paceline.placement.search.fewest import described
from paceline.placement.search.honest import HeldOut
from paceline.placement.simulator.token_evaluator import TokenEvaluator
from paceline.theory.curves import Chart, Series


def plan_record(case: Case, plan: Plan) -> dict[str, Any]:
    """The JSON object of a plan: what scripts read, and what a cluster is started from."""
    record = {
        "case": case.name,
        "policy": plan.policy,
        "groups": plan.placement.to_lists(),
        "slo_attainment": plan.slo_attainment,
        "mean_latency_served": plan.mean_latency_served,
        "p99_latency_served": plan.result.p99_latency_served,
        "planning_seconds": plan.planning_seconds,
        "finished": plan.finished,
        "num_devices": case.cluster.num_devices,
        "mem_budget": case.cluster.mem_budget,
        "models": [model.name for model in case.models],
        "model_attainment": _numbers(plan.result.model_attainment),
        "unplaceable": {case.models[m].name: str(reason) for m, reason in plan.unplaceable.items()},
        "history": [step._asdict() for step in plan.history],
        **_serving_record(case, plan.placement),
    }
    if plan.sample is not None:
        record["sample"] = asdict(plan.sample)
    if plan.windows:
        record |= {"p99_latency_served": None, "model_attainment": None}  # of all windows together nobody counts them
        record["windows"] = [{"start": w.start, "groups": w.placement.to_lists()} for w in plan.windows]
    return record


def _serving_record(case: Case, placement: Placement) -> dict[str, Any]:
    """What a cluster needs besides the groups: weights, deadlines, and seconds of stages."""
    if case.is_generated:
        return _generated_record(case, placement)
    models = [
        {"name": model.name, "path": model.path or model.name, "slo": model.slo if model.has_slo else None}
        | _speculation(model)
        for model in case.models
    ]
    seconds = [
        [case.rules.stage_seconds(case.profile_of(model).stages(group.parallel).latency) for model in group.models]
        for group in placement.groups
    ]
    batches = {} if case.batch_sizes == (1,) else {"batch_sizes": list(case.batch_sizes)}
    return {"serving": models, "stage_seconds": seconds, "overhead": case.rules.overhead} | batches


def _generated_record(case: Case, placement: Placement) -> dict[str, Any]:
    """As `_serving_record`, for models that generate token by token: costs of passes and room of engines."""
    evaluator = TokenEvaluator(case)
    tables = [evaluator.profiles_of(group) for group in placement.groups]
    models = []
    for m, model in enumerate(case.models):
        held = [g for g, group in enumerate(placement.groups) if m in group.models]
        seats = min((tables[g][model.name].seats for g in held), default=1)
        budget = min((tables[g][model.name].token_budget for g in held), default=1)
        slos = {"slo": model.slo if model.slo < NO_SLO else None}
        slos |= {name: value for name in ("slo_first", "slo_token") if (value := getattr(model, name)) < float("inf")}
        engine = {"max_num_seqs": seats, "max_num_batched_tokens": budget} | _cache_room(case, placement, m)
        path = model.path or model.name
        tokens = {"num_tokens": model.output_tokens, "prompt_tokens": model.prompt_tokens}
        lengths = {name: max(1, round(count)) for name, count in tokens.items()}
        named = {"name": model.name, "path": path}
        models.append(named | slos | lengths | {"engine": engine} | _speculation(model))
    profiles = [
        [table[case.models[m].name].record() for m in g.models]
        for g, table in zip(placement.groups, tables, strict=True)
    ]
    return {"serving": models, "pass_profiles": profiles, "overhead": case.rules.overhead}


def _speculation(model: PlacedModel) -> dict[str, Any]:
    """The speculative configuration of its engines, from the case or the place of its drafter."""
    return {} if model.speculative is None else {"speculative": model.speculative}


def _cache_room(case: Case, placement: Placement, model: int) -> dict[str, int]:
    """Least bytes for keys and values over its groups, if the profile has bytes per token."""
    rooms = []
    for group in placement.groups:
        if model in group.models and (each := case.profile_of(model).stages(group.parallel).kv_bytes):
            tokens = TokenEvaluator(case).profiles_of(group)[case.models[model].name].kv_tokens
            rooms.append(int(tokens * each))
    return {"kv_cache_memory_bytes": max(1, min(rooms))} if rooms else {}


def drafts_record(found: CoPlan) -> dict[str, Any]:
    """Places of drafters by model name, and the attainment of every combination tried; empty without drafters."""
    if not found.places:
        return {}

    def named(places: Mapping[int, str]) -> dict[str, str]:
        return {found.case.models[m].name: place for m, place in places.items()}

    tried = [{"drafts": named(places), "slo_attainment": reached} for places, reached in found.tried]
    return {"drafts": named(found.places), "drafts_tried": tried}


def drafts_table(found: CoPlan) -> Table:
    """Attainment of every combination of the drafters' places, the chosen one first."""
    table = Table(title="where drafters live", title_justify="left")
    names = [found.case.models[m].name for m in found.places]
    for name in (*names, "attainment"):
        table.add_column(name)
    for places, reached in sorted(found.tried, key=lambda tried: tried[0] != found.places):
        table.add_row(*places.values(), "cannot be served" if reached is None else _percent(reached))
    return table


def result_record(case: Case, result: SimulationResult) -> dict[str, Any]:
    """The JSON object of a simulation."""
    return {
        "case": case.name,
        "slo_attainment": result.slo_attainment,
        "mean_latency_served": result.mean_latency_served,
        "p99_latency_served": result.p99_latency_served,
        "num_requests": result.num_requests,
        "num_rejected": result.num_rejected,
        "models": [model.name for model in case.models],
        "model_attainment": _numbers(result.model_attainment),
        "group_attainment": _numbers(result.group_attainment),
        "group_utilization": _numbers(np.nanmean(result.utilization, axis=1)) if len(result.utilization) else [],
    }


def group_table(case: Case, placement: Placement, result: SimulationResult) -> Table:
    """One row per group: split, utilisation, attainment, models."""
    table = Table(title="groups", title_justify="left")
    for name in ("tensor x pipeline", "utilisation", "attainment"):
        table.add_column(name, justify="right")
    table.add_column("models")
    for g, group in enumerate(placement.groups):
        split = f"{group.parallel.tensor} x {group.parallel.pipeline} {group.parallel.device}".rstrip()
        busy = _percent(float(np.nanmean(result.utilization[g])))
        names = ", ".join(case.models[m].name for m in group.models)
        table.add_row(split, busy, _percent(result.group_attainment[g]), names)
    return table


def model_table(case: Case, placement: Placement, result: SimulationResult) -> Table:
    """One row per model: traffic, deadline, number of groups, attainment."""
    table = Table(title="models", title_justify="left")
    table.add_column("model")
    for name in ("requests/s", "slo (s)", "groups", "attainment"):
        table.add_column(name, justify="right")
    rates, replicas = case.workload.rates(len(case.models)), placement.replicas(len(case.models))
    for m, model in enumerate(case.models):
        row = f"{rates[m]:.2f}", _promises(model), str(replicas[m]), _percent(result.model_attainment[m])
        table.add_row(model.name, *row)
    return table


def _promises(model: PlacedModel) -> str:
    """Seconds until the answer, until the first token, and per further token; those that are promised."""
    slo = model.slo if model.slo < NO_SLO else float("inf")
    kinds = ((slo, ""), (model.slo_first, " first"), (model.slo_token, " per token"))
    return ", ".join(f"{seconds:.3g}{kind}" for seconds, kind in kinds if seconds < float("inf")) or "none"


def summary(plan: Plan) -> str:
    """One line: what the plan reaches and what it took to find."""
    ended = "" if plan.finished else ", stopped before it was done"
    looked, sample = "", plan.sample
    if sample is not None:
        looked = (
            f"; searched on {sample.num_requests:,} of {plan.result.num_requests:,} requests, "
            f"{sample.slo_attainment:.2%} of them in time (standard error {sample.standard_error:.2%})"
        )
    return (
        f"{plan.slo_attainment:.2%} of requests in time, mean latency {plan.mean_latency_served:.3f} s; "
        f"planned in {plan.planning_seconds:.2f} s ({plan.policy}{ended}){looked}"
    )


def batches_summary(case: Case) -> str:
    """A line on the batches that requests were simulated in; empty without batches."""
    if case.batch_sizes == (1,):
        return ""
    sizes = ", ".join(map(str, case.batch_sizes))
    return f"with batches of {sizes} requests; a cluster forms no batches: plan for one with --batch-sizes 1"


def honest_record(held: HeldOut, interval: tuple[float, float]) -> dict[str, Any]:
    """For JSON: what the search reaches on arrivals it has not seen, and how sure the plan's own attainment is."""
    return {"held_out": asdict(held) | {"regret": held.regret}, "confidence": list(interval)}


def honest_summary(held: HeldOut, interval: tuple[float, float]) -> str:
    """Two lines: how sure the plan's attainment is, and what the same search reaches on arrivals it has not seen."""
    return (
        f"between {interval[0]:.2%} and {interval[1]:.2%} on 95 % of such arrivals, resampled\n"
        f"planned on the first half: {held.train:.2%} there, {held.test:.2%} on the second half "
        f"({held.low:.2%} to {held.high:.2%}); knowing the second half would gain {100 * held.regret:.2f} points "
        f"(traffic: {held.rate_change:.2f} times the rate, {held.drift:.0%} of it at other models)"
    )


def cost_record(
    cluster: Cluster, price: float | None, tried: Mapping[int, float] | Mapping[str, float]
) -> dict[str, Any]:
    """What the devices cost per hour, where that is known; attainment by devices, where some were tried."""
    cost = cluster.price if price is None else cluster.num_devices * price
    record: dict[str, Any] = {"cost_per_hour": cost} if cost else {}
    return record | ({"attainment_by_devices": tried} if tried else {})


def cost_summary(cluster: Cluster, price: float | None, tried: Mapping[int, float] | Mapping[str, float]) -> str:
    """A line with what `cost_record` has."""
    total = cluster.price if price is None else cluster.num_devices * price
    cost = f", {total:g} per hour" if total else ""
    devices = f"{described(cluster)}" if cluster.types else number_of(cluster.num_devices, "device")
    others = ", ".join(f"{devices}: {_percent(reached)}" for devices, reached in tried.items())
    return f"{devices}{cost}" + (f" (attainment by devices: {others})" if others else "")


def roles_record(found: SeparateRoles) -> dict[str, Any]:
    """The JSON entry on separate pools for prefill and decoding."""
    pools = {"prefill": found.prefill.to_lists(), "decode": found.decode.to_lists()}
    return {"pools": pools | {"slo_attainment": found.slo_attainment, "tried": found.tried}}


def roles_summary(found: SeparateRoles, attainment: float) -> str:
    """A line with what `roles_record` has, beside the plan's attainment."""
    reads, writes, pairs = found.prefill.num_devices, found.decode.num_devices, number_of(found.tried, "pair")
    if not reads or not writes:
        return f"no devices that only read prompts or only generate answer a request in time ({pairs} tried)"
    verdict = "more" if found.slo_attainment > attainment else "no more"
    told = f"{_percent(found.slo_attainment)} of requests in time, {verdict} than where every group does both"
    return f"{number_of(reads, 'device')} for prompts only and {writes} for decoding only: {told} ({pairs} tried)"


def search_chart(plan: Plan) -> Chart:
    """The best attainment over the time of the search; mean latency where attainment never changed."""
    if not plan.history:
        raise InvalidParameter("plot", f"{plan.policy} keeps no history of a search", "plot another policy")
    seconds = [step.seconds for step in plan.history] + [plan.planning_seconds]
    attainment = [step.slo_attainment for step in plan.history]
    if min(attainment) < max(attainment):
        label, values = "SLO attainment", attainment
    else:
        label, values = "mean latency [s]", [step.mean_latency_served for step in plan.history]
    series = Series(plan.policy, seconds, [*values, values[-1]])
    return Chart("Best placement so far", "seconds of search", label, (series,), discrete=True)


def _numbers(values: np.ndarray) -> list[float | None]:
    """NaN has no place in JSON."""
    return [None if np.isnan(value) else float(value) for value in values]


def _percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.1%}"
