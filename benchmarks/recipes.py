"""Every training recipe for one model, on one text, with one budget: tokens per pass, speed-up, CPU minutes.

Trains each recipe with `paceline train`, then measures all of them together with `paceline bench`. Both resume, so
start the same command again after any interruption.

    python benchmarks/recipes.py --prompts spec_bench.jsonl --steps 1000 --out runs/recipes
    python benchmarks/recipes.py --prompts spec_bench.jsonl --time-budget 60m --out runs/recipes --only eagle hass

``--steps`` is an equal budget in tokens (every update reads as many rows), ``--time-budget`` one in minutes. The text
is written first and counts for neither. Recipes that change the target are measured over the changed target's own plain
decoding. Prompts are those with an odd ``question_id``, ``--per-family`` of each kind.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from common import console, finish, markdown, show

HEADS = {
    **{name: [name] for name in ("eagle", "hass", "eagle3", "medusa", "blockwise", "mlp_speculator", "dspark", "falcon",
                                 "p_eagle")},
    "mlp_speculator two stages": ["mlp_speculator", "--text"],
}  # fmt: skip
DRAFTS = {
    **{f"distillspec {name}": ["--divergence", name] for name in ("forward_kl", "reverse_kl", "jsd", "tvd", "tvd++")},
    "distillspec on-policy": ["--on-policy", "0.5"], "spire": ["--sparse"],
}  # fmt: skip
JOINT = {"medusa-2": "medusa", "blockwise joint": "blockwise"}
RECIPES = (*HEADS, *DRAFTS, *JOINT)
STAGED = "mlp_speculator two stages"
"""The recipe that begins with ordinary text (``--text``)."""
TREES = {"eagle-2": ("eagle", 8, {"tree": "dynamic"}), "falcon, blocks": ("falcon", 8, {"tree": "blocks"})}
"""Arms besides each recipe's chain: whose head it is, drafted tokens, options."""


def main() -> None:
    args = parse()
    place = args.out / (f"{args.steps}-steps" if args.steps else args.time_budget)
    work = place / "work"
    text_of(args, work)
    prompts = odd_prompts(args.prompts, place / "prompts.jsonl")
    made = {name: trained(name, args, place, work) for name in args.only}
    if args.only_train:
        finish({"training": made})
        return
    trees = [name for name, (recipe, *_) in TREES.items() if recipe in args.only]
    beside = {name: spec_of(name, place) for name in (*args.only, *trees) if name not in JOINT}
    arms = measured(args, args.model, beside, prompts, place / "beside") if beside else {}
    for name in (name for name in args.only if name in JOINT):
        spec, target = {name: spec_of(name, place)}, place / slug(name) / "target"
        arms |= measured(args, str(target), spec, prompts, place / f"bench-{slug(name)}")
    report(args, place, made, arms)


def text_of(args: argparse.Namespace, work: Path) -> None:
    """The text that every recipe learns from, written once; one update of the smallest head asks for it."""
    (args.out / "text" / "taps").mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "taps").exists():
        (work / "taps").symlink_to((args.out / "text" / "taps").resolve())
    run(
        ["train", "head", "medusa", "--steps", "1", "--time-budget", "240h", "-o", str(args.out / "text" / "head"),
         *(["--answers", str(args.answers)] if args.answers else [])],
        args, args.out / "text",
    )  # fmt: skip


def trained(name: str, args: argparse.Namespace, place: Path, work: Path) -> dict:
    """The JSON of `paceline train` for a recipe, from this run or an earlier one."""
    said = place / f"{slug(name)}.json"
    if said.exists():
        return json.loads(said.read_text())
    console.print(f"training {name}")
    budget = ["--steps", str(args.steps)] if args.steps else []
    budget += ["--time-budget", "240h" if args.steps else args.time_budget]
    command = ["train", *command_of(name, args), *budget, "-o", str(place / slug(name))]
    found = run(command, args, work)
    said.write_text(json.dumps(found))
    return found


def command_of(name: str, args: argparse.Namespace) -> list[str]:
    """What follows ``paceline train`` for a recipe."""
    if name in HEADS:
        return ["head", *HEADS[name], *([str(args.text)] if name == STAGED else [])]
    return ["joint", JOINT[name]] if name in JOINT else ["draft", "--layers", "4", *DRAFTS[name]]


def spec_of(name: str, place: Path) -> dict:
    """The engine's configuration for a recipe's head: a chain of three or a tree in every pass, even if slower."""
    recipe, num_tokens, options = TREES.get(name, (name, 3, {}))
    method = "head" if recipe in (*HEADS, *JOINT) else "spire" if recipe == "spire" else "draft_model"
    folder = place / slug(recipe)
    model = folder / "heads" if recipe in JOINT else folder
    return {
        "method": method,
        "model": str(model),
        "num_draft_tokens": num_tokens,
        "policy": "fixed",
        "options": options,
    }


def run(command: list[str], args: argparse.Namespace, work: Path) -> dict:
    """A `paceline train` command to its end; its JSON."""
    common = ["-m", args.model, "--tokens", str(args.tokens), "--work", str(work), "--dtype", args.dtype, "--json"]
    threads = ["--threads", str(args.threads)] if args.threads else []
    return paceline([*command, *common, *threads])


def paceline(command: list[str]) -> dict:
    """The last line of a command's output, as JSON; ends this program where the command fails."""
    done = subprocess.run([sys.executable, "-m", "paceline.cli.main", *command], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def odd_prompts(source: Path, path: Path) -> Path:
    """Those whose ``question_id`` is odd, in a file."""
    lines = [line for line in source.read_text().split("\n") if line and json.loads(line).get("question_id", 1) % 2]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def measured(args: argparse.Namespace, model: str, specs: dict, prompts: Path, answers: Path) -> dict:
    """Recipe to family to temperature to what `paceline bench` found."""
    options = [word for name, spec in specs.items() for word in ("--spec", f"{slug(name)}={json.dumps(spec)}")]
    found = paceline([
        "bench", model, "--prompts", f"spec-bench:{prompts}", "--per-family", str(args.per_family), "--drafts", "",
        *options, "--temperature", "0,1", "--unseeded", "--max-tokens", str(args.max_tokens), "--dtype", args.dtype,
        "-o", f"{answers}.jsonl", "--json", *(["--threads", str(args.threads)] if args.threads else []),
    ])  # fmt: skip
    names = {slug(name): name for name in specs}
    arms: dict = {name: {} for name in specs}
    for table in found["tables"]:
        for label, arm in table["arms"].items():
            if label in names:
                arms[names[label]].setdefault(table["family"], {})[table["temperature"]] = arm
    return arms


def report(args: argparse.Namespace, place: Path, made: dict, arms: dict) -> None:
    """All prompts together, then tokens per pass and speed-up by family; for people and for machines."""
    rows = []
    for name, families in arms.items():
        recipe = TREES.get(name, (name,))[0]
        zero, one = families["all"][0.0], families["all"][1.0]
        rows.append([
            name, number(zero["tokens_per_pass"]), number(one["tokens_per_pass"]), times(zero), times(one),
            number(zero["draft_share"]), made[recipe]["step"], round(made[recipe]["cpu_seconds"] / 60, 1),
            round(made[recipe]["peak_bytes"] / 1e9, 1), parameters(place / slug(recipe)),
        ])  # fmt: skip
    header = ("recipe", "tokens/pass T=0", "tokens/pass T=1", "speed T=0", "speed T=1", "draft share", "updates",
              "CPU minutes", "GB", "parameters, M")  # fmt: skip
    kinds = sorted({kind for families in arms.values() for kind in families} - {"all"})
    by_kind = [
        [name, *(f"{number(one['tokens_per_pass'])}, {times(one)}" for one in (kind_of[kind][0.0] for kind in kinds))]
        for name, kind_of in arms.items()
    ]
    title = f"{args.model}, {f'{args.steps} updates' if args.steps else args.time_budget}"
    tables = [(title, header, rows), (f"{title}: tokens/pass and speed, T=0", ("recipe", *kinds), by_kind)]
    for table in tables:
        show(*table)
    if args.markdown:
        args.markdown.write_text("\n".join(markdown(*table) for table in tables))
    finish({"header": header, "rows": rows, "families": kinds, "by_family": by_kind, "training": made})


def times(arm: dict) -> str:
    """Speed over plain decoding with its interval."""
    if arm["low"] is None:
        return number(arm["ratio"])
    return f"{number(arm['ratio'])} [{number(arm['low'])}, {number(arm['high'])}]"


def parameters(folder: Path) -> float:
    """Millions of numbers in the tensors that a recipe saved, those that the target lends left out."""
    path = folder / "heads" if (folder / "heads").is_dir() else folder
    with (path / "model.safetensors").open("rb") as file:
        table = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shapes = [entry["shape"] for name, entry in table.items() if name not in ("__metadata__", "d2t", "t2d")]
    total = 0
    for shape in shapes:
        size = 1
        for width in shape:
            size *= width
        total += size
    return round(total / 1e6, 2)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def slug(name: str) -> str:
    """A recipe's name as that of a folder and of an arm."""
    return name.replace(",", "").replace(" ", "-").replace("+", "p")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, required=True, help="Spec-Bench's question.jsonl")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--steps", type=int, help="updates of every recipe")
    budget.add_argument("--time-budget", help="time of every recipe, as 60m")
    parser.add_argument("--tokens", type=int, default=700_000, help="answer tokens of the text")
    parser.add_argument("--answers", type=Path, help="what the model said before, in place of writing")
    parser.add_argument("--text", type=Path, help=f"ordinary text, for {STAGED} alone")
    parser.add_argument(
        "--only", nargs="+", choices=RECIPES, help="all but for what needs --text, unless told otherwise"
    )
    parser.add_argument("--only-train", action="store_true", help="measure later, with the machine to itself")
    parser.add_argument("--per-family", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="w8a8")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--markdown", type=Path, help="write the tables there")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.only = args.only or [name for name in RECIPES if args.text or name != STAGED]
    if STAGED in args.only and not args.text:
        parser.error(f"{STAGED} needs --text FILE")
    return args


if __name__ == "__main__":
    main()
