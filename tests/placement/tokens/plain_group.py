"""The rule of a group that generates for many requests at once, one round after the other and as plainly as can be."""

from dataclasses import dataclass


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
    starts: bool = False
    lane: int = 0
    first: float = 0.0
    end: float | None = None


def play(requests, profiles):
    """(first token, end) of each request, which are let in all and served by one group."""
    clock, waiting, inside, ended = 0.0, sorted(requests, key=lambda r: r.arrival), [], {}
    while waiting or inside:
        if not inside:
            clock = max(clock, waiting[0].arrival)
        while waiting and waiting[0].arrival <= clock:
            waiting[0].starts = all(r.model != waiting[0].model for r in inside)
            inside.append(waiting.pop(0))
        for model, profile in profiles.items():
            admit([r for r in inside if r.model == model], profile)
        rounds = [
            a_pass([r for r in inside if r.model == model and r.runs and r.lane == lane], p)
            for model, p in profiles.items()
            for lane in range(p.stages)
        ]
        longest = max(decoding + reading for (decoding, reading), _ in rounds)
        fresh = {r.model for r in inside if r.starts and r.read == 0}
        clock += max(longest, side_by_side([seconds for seconds, _ in rounds], profiles, fresh))
        for _, changes in rounds:
            for request, read, made in changes:
                request.read, request.made = request.read + read, request.made + made
                if request.made == 1 and read:
                    request.first = clock
                if request.made >= request.total:
                    ended[request.number] = (request.first, clock)
        inside = [r for r in inside if r.number not in ended]
    return ended


def side_by_side(passes, profiles, fresh):
    """Seconds of all passes at once: those of every lane of every model in turn; `fresh` models begin with them."""
    total, most = 0.0, 0.0
    for model, profile in profiles.items():
        own = [passes.pop(0) for _ in range(profile.stages)]
        total += sum(decoding + reading for decoding, reading in own)
        overlaps = profile.overlap or profile.stages, profile.prefill_overlap or profile.stages
        seconds = sum(decoding / overlaps[0] + reading / overlaps[1] for decoding, reading in own)
        if model in fresh:  # the longest pass goes through the whole pipeline before the others leave it
            seconds += max(map(sum, own)) * (1 - 1 / overlaps[1])
        most = max(most, seconds)
    return max(most, total / max(p.stages for p in profiles.values()))


def admit(requests, profile):
    running = [r for r in requests if r.runs]
    room = profile.kv_tokens - sum(r.prompt + r.expected for r in running)
    for request in (r for r in requests if not r.runs):
        need = request.prompt + request.expected
        if running and (len(running) >= profile.seats or room < need):
            return
        lanes = [sum(r.lane == lane for r in running) for lane in range(profile.stages)]
        request.runs, request.lane, room = True, lanes.index(min(lanes)), room - need
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
    whole = profile.pass_seconds(len(decoding), len(changes), context, read)
    for_decodes = profile.pass_seconds(len(decoding), len(changes), context) if decoding else 0.0
    return (for_decodes, whole - for_decodes), changes
