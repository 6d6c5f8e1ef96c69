"""The ledger: wealth of earlier audits of the same weights and settings, so that their evidence accumulates."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.disk import check_file, in_one_move
from paceline.errors import InvalidParameter
from paceline.evaluation.audit.betting import Bets

FORMAT, VERSION = "paceline-audit-ledger", 2


def fingerprint(weights: str, settings: Mapping[str, Any]) -> str:
    """The ledger's key of these weights and settings: 24 hexadecimal digits of SHA-256."""
    text = json.dumps([weights, dict(settings)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def check_ledger(path: Path) -> None:
    """Raise InvalidParameter if `path` exists and is no ledger, or cannot be written, before the audit runs."""
    _read(check_file("ledger", path))


def read_bets(path: Path, key: str) -> Bets:
    """The bets of earlier audits; new ones if there are none.

    Raises:
        InvalidParameter: the file is no ledger.
    """
    entry = _read(path).get(key)
    return Bets() if entry is None else Bets.of_record(entry)


def write_bets(path: Path, key: str, bets: Bets) -> None:
    """Write the wealth of `bets` to the ledger, atomically."""
    ledger = _read(path)
    number = ledger.get(key, {}).get("audits", 0) + 1
    ledger[key] = {"audits": number, **bets.as_record()}
    with in_one_move(path) as file:
        file.write_text(json.dumps({"format": FORMAT, "version": VERSION, "ledger": ledger}, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text())
        if values["format"] != FORMAT or values["version"] != VERSION:
            raise ValueError
        return dict(values["ledger"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidParameter("ledger", f"{path} is no ledger of version {VERSION}", "name another file") from None
