"""The rule of a group that generates for many requests at once, one round after the other and as plainly as can be."""

from dataclasses import dataclass

from paceline.placement.tokens.passes import GATHER


@dataclass
class PlainRequest:
    number: int
    model: str
    prompt: int
    total: int
    expected: float
    arrival: float
    read: int = 0
    made: int = 0
    runs: bool = False
    lane: int = 0
    first: float = 0.0
    end: float | None = None


def play(requests, profiles):
    """(first token, end) of each request, which are let in all and served by one group."""
    return (
        play_pipeline(requests, profiles)
        if max(p.stages for p in profiles.values()) > 1
        else rounds(requests, profiles)
    )


def rounds(requests, profiles):
    clock, waiting, inside, ended = 0.0, sorted(requests, key=lambda r: r.arrival), [], {}
    while waiting or inside:
        if not inside:
            clock = max(clock, waiting[0].arrival)
        gathers = 0.0 if any(r.runs for r in inside) else GATHER
        while waiting and waiting[0].arrival <= clock + gathers:
            inside.append(waiting.pop(0))
        passes = []
        for model, profile in profiles.items():
            mine = [r for r in inside if r.model == model]
            admit(mine, profile.seats, profile.kv_tokens)
            passes.append(a_pass([r for r in mine if r.runs], profile))
        clock += sum(sum(seconds) for seconds, _ in passes)
        for _, changes in passes:
            go_on(changes, clock, ended)
        inside = [r for r in inside if r.number not in ended]
    return ended


def play_pipeline(requests, profiles):
    """Passes one at a time, that of the lane that has been ready for longest first."""
    waiting, inside, ended = sorted(requests, key=lambda r: r.arrival), [], {}
    ready = {(model, lane): 0.0 for model, p in profiles.items() for lane in range(p.stages)}
    gathered = dict.fromkeys(ready, 0.0)
    free = last = 0.0
    while waiting or any(r.number not in ended for r in inside):
        at_work = {(r.model, r.lane) for r in inside if r.number not in ended}
        order = [key for key in ready if key in at_work]
        key = min(order, key=lambda k: max(ready[k], gathered[k])) if order else None
        if waiting and (key is None or waiting[0].arrival <= max(ready[key], gathered[key])):
            new = waiting.pop(0)
            there = [
                r
                for r in inside
                if r.model == new.model and not (r.number in ended and ended[r.number][1] <= new.arrival)
            ]
            counts = [sum(r.lane == lane for r in there) for lane in range(profiles[new.model].stages)]
            new.lane = counts.index(min(counts))
            if not any(r.lane == new.lane and r.number not in ended for r in there):
                own = new.model, new.lane
                gathered[own] = new.arrival + GATHER if ready[own] < new.arrival else 0.0
                ready[own] = max(ready[own], new.arrival)
            inside.append(new)
            continue
        assert key is not None
        profile = profiles[key[0]]
        mine = [r for r in inside if (r.model, r.lane) == key and r.number not in ended]
        admit(mine, -(-profile.seats // profile.stages), profile.kv_tokens / profile.stages)
        (decoding, reading), changes = a_pass([r for r in mine if r.runs], profile)
        hold = decoding / (profile.overlap or profile.stages) + reading / (profile.prefill_overlap or profile.stages)
        start = max(ready[key], free)
        free = start + hold
        last = ready[key] = max(start + decoding + reading, last + hold)
        go_on(changes, ready[key], ended)
    return ended


def go_on(changes, clock, ended):
    for request, read, made in changes:
        request.read, request.made = request.read + read, request.made + made
        if request.made == 1 and read:
            request.first = clock
        if request.made >= request.total:
            ended[request.number] = (request.first, clock)


def admit(requests, seats, room):
    running = [r for r in requests if r.runs]
    room -= sum(r.prompt + r.expected for r in running)
    for request in (r for r in requests if not r.runs):
        need = request.prompt + request.expected
        if running and (len(running) >= seats or room < need):
            return
        request.runs, room = True, room - need
        running.append(request)


def a_pass(running, profile):
    """Seconds for decodes and for prompts, and what each request reads and makes."""
    decoding = [r for r in running if r.read >= r.prompt]
    left, changes = max(profile.token_budget - len(decoding), 1), [(r, 0, 1) for r in decoding]
    for request in (r for r in running if r.read < r.prompt):
        chunk = min(left, request.prompt - request.read)
        left -= chunk
        if chunk:
            changes.append((request, chunk, int(request.read + chunk == request.prompt)))
    if not changes:
        return (0.0, 0.0), []
    context = sum(r.prompt + 0.5 * r.expected for r in decoding) / len(decoding) if decoding else 0.0
    read = sum(chunk for _, chunk, _ in changes)
    behind = sum(chunk * request.read for request, chunk, _ in changes) / read if read else 0.0
    whole = profile.pass_seconds(len(decoding), len(changes), context, read, behind)
    for_decodes = profile.pass_seconds(len(decoding), len(changes), context) if decoding else 0.0
    return (for_decodes, whole - for_decodes), changes
