"""The model card of a head in Markdown: what it is, how it was trained and how well it drafts.

It is generated from the record and never read back.
"""

from collections.abc import Mapping

from paceline.models.heads.conventions import conventions
from paceline.models.heads.record import HeadRecord


def card_text(record: HeadRecord) -> str:
    """The card as Markdown: target, conventions, and the entries of `HeadRecord.card`."""
    target = record.config.target
    lines = [f"# {record.config.family} head for {target.name or 'an unnamed target'}", ""]
    lines += [f"- {name}: {value}" for name, value in conventions(record)]
    for name, value in record.card.items():
        lines += _section(name, value)
    return "\n".join(lines) + "\n"


def _section(name: str, value: object) -> list[str]:
    title = name.replace("_", " ")
    if not isinstance(value, Mapping):
        return ["", f"**{title}**: {_shown(value)}"]
    return ["", f"## {title}", "", *(f"- {str(key).replace('_', ' ')}: {_shown(item)}" for key, item in value.items())]


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(f"[{_shown(item)}]" if isinstance(item, (list, tuple)) else _shown(item) for item in value)
    return str(value)
