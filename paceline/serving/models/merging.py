"""Prometheus texts of several engines as one: a scraper wants every family of metrics once, its samples together."""

from collections.abc import Sequence


def merged(texts: Sequence[bytes]) -> bytes:
    """All samples of `texts`, which must differ in their labels, under one heading for each family."""
    if len(texts) == 1:
        return texts[0]
    headings: dict[str, dict[str, None]] = {}
    samples: dict[str, list[str]] = {}
    for text in texts:
        family = ""
        for line in text.decode().splitlines():
            if line.startswith("# "):
                family = line.split(" ")[2]
                headings.setdefault(family, {})[line] = None
            elif line:
                samples.setdefault(family, []).append(line)
    families = dict.fromkeys((*headings, *samples))
    lines = [line for each in families for line in (*headings.get(each, ()), *samples.get(each, ()))]
    return ("\n".join(lines) + "\n").encode()
