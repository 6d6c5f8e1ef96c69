"""Turn a trained head into a shipped one: 8-bit weights, and a card with its measurements in the engine.

    python benchmarks/acceptance.py --prompts spec-bench:spec_bench.jsonl --families conversation --temperature 0 \
        --spec 'head={"method": "head", "model": "heads/dspark", "num_draft_tokens": 3}' > greedy.json
    python tools/release_head.py heads/dspark smollm2-135m/dspark --measured "conversations, greedy=greedy.json"

The head is checked against its target first. The card keeps what `paceline train head` wrote, and the text, licence and
weak spots of the shipped head of that name; options of this command replace them.
"""

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.models.heads.files import CARD, CONFIG, save_head
from paceline.models.heads.registry import load_head, shipped_heads
from paceline.models.resolve import ModelSource, resolve_model

Said = dict[str, str | None]


def main() -> None:
    args = parse()
    target, _, folder = args.name.rpartition("/")
    told = {"licence": args.licence, "weak_spots": args.weak_spots}
    told_of_training = {"prompts": args.prompts, "kept_out": args.kept_out}
    destination = args.into / Path(target).name / folder
    release(args.folder, resolve_model(target), destination, told, told_of_training, dict(args.measured))
    print((destination / CARD).read_text())


def release(
    folder: Path, target: ModelSource, destination: Path, told: Said, told_of_training: Said, accepted: dict[str, Any]
) -> None:
    """Write the head of `folder` to `destination`; what is not told is taken from the card of the head there."""
    head, before, own = load_head(folder, target), card_of(destination), card_of(folder)
    card = own | said(told, before) | ({"accepted": accepted} if accepted else {})
    training = before.get("training", {})
    card["training"] = own["training"] | said(told_of_training, training)
    if re.search(rf"--resume (\S*/)?{re.escape(destination.name)}(\s|$)", own["training"]["command"]):
        card["training"]["runs_before"] = [*training.get("runs_before", []), run_of(training)]
    save_head(replace(head, card=rounded(card)), destination, storage="int8")


def run_of(training: dict[str, Any]) -> str:
    """The training run of a card, in one line."""
    command = training.get("command") or training.get("recipe", "an unknown command")
    return f"{training['updates']:,} updates, {training['rows_seen']:,} rows, {training['minutes']} minutes: {command}"


def said(told: Said, before: dict[str, Any]) -> dict[str, Any]:
    """The entries of `told`, or their values in `before`; entries that neither has are left out."""
    found = {key: value or before.get(key) for key, value in told.items()}
    return {key: value for key, value in found.items() if value}


def card_of(folder: Path) -> dict[str, Any]:
    """The card of the head there, empty where there is none."""
    path = folder / CONFIG
    return json.loads(path.read_text())["paceline"]["card"] if path.exists() else {}


def measured(text: str) -> tuple[str, dict[str, Any]]:
    """LABEL=FILE, what `benchmarks/acceptance.py` printed for one drafter, as a line of the card."""
    label, _, name = text.rpartition("=")
    try:
        [found] = json.loads(Path(name).read_text().splitlines()[-1])["drafters"].values()
        figures = {figure: found[figure] for figure in ("tokens_per_pass", "error", "passes")}
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no LABEL=FILE with one drafter ({error})") from None
    if not label:
        raise argparse.ArgumentTypeError(f"{text!r} is no LABEL=FILE: a label is missing")
    return label, figures


def rounded(value: Any) -> Any:
    """Numbers to four places: a card is read by people."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="that `paceline train head` wrote")
    parser.add_argument("name", help="TARGET/NAME that it is shipped under")
    parser.add_argument("--measured", type=measured, action="append", default=[], help="LABEL=FILE of acceptance.py")
    parser.add_argument("--licence", help="of the head and of the text it was trained on")
    parser.add_argument("--prompts", help="where the prompts of the training text come from")
    parser.add_argument("--kept-out", help="what was kept out of the training text")
    parser.add_argument("--weak-spots", help="where the head is worth little")
    parser.add_argument("--into", type=Path, default=shipped_heads(), help="folder of shipped heads")
    return parser.parse_args()


if __name__ == "__main__":
    main()
