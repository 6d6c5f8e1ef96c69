"""What `deploy/` holds fits the server: options exist, metrics on the board are told, nothing runs as root."""

import asyncio
import json
import re
from pathlib import Path

import yaml

from paceline.cli.main import app
from paceline.models.cache_dir import CACHE_VARIABLE
from tests.serving.conftest import MODEL

DEPLOY = Path(__file__).parents[2] / "deploy"


def options():
    import typer.main

    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {parameter.name for parameter in command.params}


def test_options_exist():
    names = {key.replace("-", "_") for key in yaml.safe_load((DEPLOY / "systemd/serve.yaml").read_text())}
    environment = re.findall(r"PACELINE_([A-Z_]+)=", (DEPLOY / "Dockerfile").read_text())
    assert names | {name.lower() for name in environment if f"PACELINE_{name}" != CACHE_VARIABLE} <= options()
    command = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["paceline"]["command"]
    assert {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", command)} <= options()


def test_it_is_not_root_and_has_time_to_drain():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert lines.index("USER paceline") < next(i for i, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    unit = (DEPLOY / "systemd/paceline.service").read_text()
    drain = yaml.safe_load((DEPLOY / "systemd/serve.yaml").read_text())["drain-seconds"]
    assert "DynamicUser=yes" in unit and int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) > drain


def test_every_metric_on_the_board_is_told(serving):
    async def scene():
        async with serving() as client:
            await client.post("/v1/completions", json={"model": MODEL, "prompt": "abcabcabc", "max_tokens": 20})
            return (await client.get("/metrics")).text

    told = set(re.findall(r"^# TYPE (\S+)", asyncio.run(scene()), re.M))
    board = json.loads((DEPLOY / "grafana/board.json").read_text())
    asked = {
        name for panel in board["panels"] for t in panel["targets"] for name in re.findall(r"paceline:\w+", t["expr"])
    }
    assert len(asked) > 12
    assert {name.removesuffix("_bucket") for name in asked} <= told


def rendered(template: str, values: dict) -> str:
    """The part of Helm's language that the chart uses: values, `quote`, `add`, `range`, `with` and `if`."""

    def value(expression: str, dot: object) -> object:
        name, *filters = (part.strip() for part in expression.split("|"))
        if name.startswith("add "):
            return sum(int(str(value(each, dot))) for each in name.split()[1:])
        found: object = dot if name == "." else int(name) if name.isdigit() else values
        for key in name.split(".")[1:] if len(name) > 1 and not name.isdigit() else ():
            found = found[key]  # type: ignore[index]
        return json.dumps(found) if filters and filters[0] in ("quote", "toJson") else found

    def block(lines: list[str], dot: object) -> list[str]:
        out: list[str] = []
        while lines:
            line = lines.pop(0)
            opened = re.match(r"\s*\{\{- (range|with|if) (\S+) \}\}", line)
            if re.match(r"\s*\{\{- end \}\}", line):
                return out
            if not opened:
                out.append(re.sub(r"\{\{ (.+?) \}\}", lambda found: str(value(found[1], dot)), line))
                continue
            given = value(opened[2], dot)
            inside, rest = [], list(lines)
            for each in given if opened[1] == "range" else [given if opened[1] == "with" else dot]:  # type: ignore
                rest = list(lines)
                inside += block(rest, each)
            if opened[1] == "range" and not given:
                block(rest, None)
            out += inside if given else []
            lines[:] = rest
        return out

    return "\n".join(block(template.splitlines(), None))


def test_the_chart_is_made_of_options_and_probes_that_exist():
    chart = DEPLOY / "helm/paceline"
    values = yaml.safe_load((chart / "values.yaml").read_text()) | {"args": ["--max-queue", "64"], "podMonitor": True}
    known = {"Values": values, "Release": {"Name": "mine"}}
    made = {path.stem: yaml.safe_load(rendered(path.read_text(), known)) for path in (chart / "templates").iterdir()}
    pod = made["statefulset"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["args"][:2] == ["serve", "smollm2-135m"] and container["args"][-2:] == ["--max-queue", "64"]
    flags = {arg.partition("=")[0][2:].replace("-", "_") for arg in container["args"] if arg.startswith("--")}
    assert flags <= options()
    probes = {container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert probes == {"/ready", "/health"}
    assert pod["terminationGracePeriodSeconds"] > values["drainSeconds"]
    assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    labels = made["statefulset"]["spec"]["template"]["metadata"]["labels"]
    assert made["service"]["spec"]["selector"] == labels
    assert made["podmonitor"]["spec"]["selector"]["matchLabels"] == labels
    assert container["resources"] == values["resources"]
