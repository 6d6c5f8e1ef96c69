"""Gaps in source code, as an editor asks a model of code to fill them: prompts for `decode.py`.

From files of a folder a gap begins inside a line after its indentation; some lines before it are the prompt, and some
after it the suffix. Files are drawn evenly, and places in them.

    python benchmarks/gaps.py paceline --limit 24 > gaps.jsonl
    python benchmarks/decode.py --model qwen2.5-coder-0.5b.gguf --prompts gaps.jsonl --drafts ngram suffix

A line of what it prints is {"prompt": ..., "suffix": ..., "category": the folder's name}.
"""

import argparse
import json
import random
from pathlib import Path

INDENTED = ("    ", "\t")


def main() -> None:
    args = parse()
    files = sorted(path for path in args.folder.rglob(f"*{args.suffix}") if path.stat().st_size < 1 << 20)
    rng = random.Random(args.seed)
    rng.shuffle(files)
    found = 0
    for path in files:
        if found == args.limit:
            break
        lines = path.read_text(errors="replace").splitlines(keepends=True)
        places = [
            at for at, line in enumerate(lines) if at >= args.least and line.strip() and line.startswith(INDENTED)
        ]
        if not places:
            continue
        found += 1
        at = rng.choice(places)
        indentation = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        before, after = lines[max(at - args.before, 0) : at], lines[at + args.gap : at + args.gap + args.after]
        record = {
            "prompt": "".join(before) + indentation,
            "suffix": "\n" + "".join(after),
            "category": args.folder.name,
        }
        print(json.dumps(record))
    if found < args.limit:
        raise SystemExit(f"{args.folder} has {found} files with a place for a gap; ask for fewer with --limit")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="source code")
    parser.add_argument("--suffix", default=".py", help="how the names of its files end")
    parser.add_argument("--limit", type=int, default=24, help="gaps to write")
    parser.add_argument("--before", type=int, default=80, help="lines before the gap, at most")
    parser.add_argument("--after", type=int, default=30, help="lines after it, at most")
    parser.add_argument("--gap", type=int, default=3, help="lines that are left out")
    parser.add_argument("--least", type=int, default=30, help="lines before the first place of a gap")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
