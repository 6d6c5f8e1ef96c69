"""The command line: what scripts read, what people see, and what happens to bad input."""

import json
import os
import re
import subprocess
import sys
import time
import warnings
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from paceline.cli.generate import Answer
from paceline.cli.main import app, main
from paceline.cli.options import model as options
from paceline.cli.options.groups import Drafting
from paceline.cli.tune import _verdict
from paceline.config import SpeculativeConfig
from paceline.errors import HeadWarning, InvalidParameter, PacelineError
from paceline.models.numba_executor.conversions import place_of
from paceline.scheduling.profile import Profile

runner = CliRunner()


def invoke(*arguments, code=0):
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.mark.parametrize(
    "command", [[], ["generate"], ["chat"], ["models"], ["demo"], ["tree"], ["theory"], ["theory", "table"]]
)
def test_every_command_explains_itself(command):
    text = invoke(*command, "--help")
    assert "Usage" in text
    if command and command != ["theory"]:
        assert "Examples" in text


@pytest.mark.parametrize(
    "command",
    ["demo", "bench", "advise", "audit", "tune", "tree", "layers", "capacity", "train head", "train draft",
     "train joint", "train memory", "train disco"],
)  # fmt: skip
def test_a_long_command_says_how_long_it_takes(command):
    text = " ".join(invoke(*command.split(), "--help").split())
    assert re.search(r"Takes (about|five|as long)", text)


@pytest.mark.weights
@pytest.mark.parametrize("draft", ["ngram", "suffix"])
def test_generate_prints_the_object_that_scripts_read(draft):
    text = invoke(
        "generate", "--model", "smollm2-135m", "--draft", draft, "--policy", "fixed", "--max-tokens", "24",
        "--temperature", "0", "--seed", "0", "--raw", "--compare", "--json", "red green blue red green blue red green",
    )  # fmt: skip
    record = json.loads(text)
    assert record["identical"] is True
    assert record["text"] == record["plain"]["text"]
    assert record["token_ids"] == record["plain"]["token_ids"]
    assert len(record["provenance"]) == len(record["token_ids"]) == 24
    assert set(record["provenance"]) <= {"target", "drafted", "bonus", "recovered"}
    stats = record["stats"]
    for name in ("tokens_per_second", "acceptance_length", "target_passes", "predicted_speedup", "speedup"):
        assert stats[name] > 0
    assert 0 < stats["acceptance_rate"] <= 1
    assert "drafted" in record["provenance"]


@pytest.mark.weights
def test_generate_streams_text_and_closes_with_a_table():
    arguments = ["generate", "--raw", "--draft", "ngram", "-n", "40", "--compare", "[b]one[/b] two three one two"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0
    assert result.stdout == json.loads(invoke(*arguments, "--json"))["text"] + "\n"
    for words in ("tokens/s", "acceptance length", "speed-up, theory", "same text", "cut at 40 tokens", "gguf"):
        assert words in result.stderr
    assert any(word in result.stderr for word in ("Drafting", "No clear difference", "No verdict"))  # on a busy machine


@pytest.mark.weights
def test_coupled_sampling_is_identical_under_compare():
    record = json.loads(
        invoke(
            "generate", "--temperature", "0.8", "--top-p", "0.95", "--seed", "5", "--rule", "coupled", "-n", "24",
            "--compare", "--json", "the sea the sea the sea",
        )
    )  # fmt: skip
    assert record["identical"] is True


@pytest.mark.weights
def test_chat_answers_takes_commands_and_leaves():
    result = runner.invoke(
        app, ["chat", "-t", "0", "-n", "8"], input="Say hello.\n/stats\n/reset\n/nonsense\n/help\n/quit\n"
    )
    assert result.exit_code == 0, result.output
    assert "tokens/s" in result.stderr
    assert "No such command" in result.stderr and "/save FILE" in result.stderr


def test_models_lists_the_default_model():
    record = json.loads(invoke("models", "--json"))
    assert record["models"][0]["name"] == options.DEFAULT_MODEL
    assert options.DEFAULT_MODEL in invoke("models")


def test_models_deletes_weights_of_other_versions_where_it_is_told_to(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    assert "--remove-unread" not in invoke("models")
    old = tmp_path / "converted" / "abc def-int8-0"
    old.mkdir(parents=True)
    (old / "head.npy").write_bytes(b"0" * 3_000_000)
    told = "3 MB of it are weights that another version of paceline converted; to delete them: "
    assert told + "paceline models --remove-unread" in invoke("models")
    assert json.loads(invoke("models", "--json"))["unread"] == [{"path": str(old), "bytes": 3_000_000}]
    own = place_of(tmp_path, "abc", "int8")
    own.mkdir()
    result = runner.invoke(app, ["models", "--remove-unread", "--json"])
    assert json.loads(result.stdout)["unread"] == [] and result.stderr == "3 MB of converted weights deleted\n"
    assert own.exists() and not old.exists()


def test_models_deletes_what_was_not_used_for_long(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    kept, old = place_of(tmp_path, "abc", "int8"), place_of(tmp_path, "def", "int8")
    kernel, lock = tmp_path / "kernels" / "run-1.nbc", tmp_path / "kernels" / "run-1.lock"
    for folder in (kept, old, kernel.parent):
        folder.mkdir(parents=True)
    for path in (kept / "head.npy", old / "head.npy", kernel, lock):
        path.write_bytes(b"0" * 1_000_000)
    for path in (old, kernel, lock, kept / "head.npy"):
        os.utime(path, (0, time.time() - 31 * 86_400))
    invoke("models", "--remove-unused", "40")
    assert "3 MB of it were not used for 30 days; to delete them: paceline models --remove-unused 30" in invoke(
        "models"
    )
    result = runner.invoke(app, ["models", "--remove-unused", "30", "--json"])
    assert json.loads(result.stdout)["unused"] == {"days": 30, "bytes": 0}
    assert result.stderr == "3 MB of what was not used for 30 days deleted\n"
    assert kept.exists() and not any(path.exists() for path in (old, kernel, lock))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "--model", "no-such-model", "hi"], ["no-such-model", "smollm2-135m"]),
        (["generate", "--temperature", "-1", "hi"], ["temperature", "greedy"]),
        (["generate", "--top-p", "0", "hi"], ["top_p", "(0, 1]"]),
        (["generate", "--top-p", "1.5", "hi"], ["top_p"]),
        (["generate", "--top-k", "-3", "hi"], ["top_k"]),
        (["generate", "--max-tokens", "0", "hi"], ["max_tokens"]),
        (["generate", "-k", "-1", "hi"], ["num_draft_tokens"]),
        (["generate", "--max-tokens", str(10**30), "hi"], ["max_tokens", "give at most 2147483647"]),
        (["generate", "--policy", "guess", "hi"], ["policy", "fixed"]),
        (["advise", "--candidates", "draft_model"], ["candidates", "draft_model:MODEL"]),
        (["serve", "--allowed-origin", "foo"], ["allowed_origin", "'foo' is no web origin", "https://example.org"]),
        (["generate", "--draft-option", "oops", "hi"], ["draft_option", "NAME=VALUE"]),
        (["generate", "--draft", "draft_model", "hi"], ["model", "smaller model"]),
        (["generate", "--temperature", "1", "--compare", "hi"], ["seed"]),
        (["generate", "--draft", "none", "--compare", "hi"], ["compare", "--draft none", "name a drafter"]),
        (["generate", ""], ["prompt", "empty"]),
        (["generate", "caf\udce9"], ["prompt", "the argument is not UTF-8", "convert it"]),
        (["chat", "--system", "caf\udce9"], ["system", "the argument is not UTF-8"]),
        (["generate", "--json-schema", __file__, "hi"], ["json_schema", __file__, "is no JSON"]),
        (["generate", "--json-schema", "{'a': 1}", "hi"], ["json_schema: the schema is no JSON", "a file"]),
        (["generate", "--json-schema", "nowhere.json", "hi"], ["json_schema: nowhere.json cannot be read"]),
        (["generate", "--json-schema", "", "hi"], ["json_schema: the schema is no JSON"]),
        (["generate", "--device", "gpu", "hi"], ["device: 'gpu' is unknown", "cuda:0"]),
        (["generate", "--draft-model", "smollm2-135m/eagle3", "hi"], ["draft_model", "draft head", "--draft head"]),
        (["bench", "--drafts", "draft_model"], ["drafts: draft_model needs a model", "draft_model:small.gguf"]),
        (["bench", "--drafts", ""], ["drafts", "names no drafter"]),
        (["capacity", "x", "--between-ms", "0", "--first-ms", "1"], ["between_ms: 0 is not above 0", "milliseconds"]),
        (["capacity", "x", "--between-ms", "1", "--first-ms", "-2"], ["first_ms: -2 is not above 0"]),
        (["bench", "-k", "0,4"], ["num_draft_tokens", "below 1", "2,4,8"]),
        (["generate", "-k", "0", "--compare", "hi"], ["compare", "-k 0", "give 1 or more"]),
        (["advise", "none"], ["url", "neither a model nor a server"]),
        (["audit", "none"], ["url", "neither a model nor a server"]),
        (["generate", "--draft", "none", "--draft-option", "x=1", "hi"], ["draft_option", "none"]),
        (["generate", "--draft", "none", "-k", "4", "hi"], ["num_draft_tokens", "none"]),
        (["train", "disco", "--prompts", "x", "--draft-model", "y", "-o", "/"], ["output", "name a file"]),
        (["train", "head", "medusa", "--steps", "0"], ["steps", "at least 1"]),
        (["train", "head", "medusa", "--seed", "-1"], ["seed", "-1", "0 or more"]),
        (["train", "draft", "--seed", "-1"], ["seed", "-1", "0 or more"]),
        (["train", "joint", "medusa", "-o", "x", "--seed", "-1"], ["seed", "-1", "0 or more"]),
        (["train", "memory", "--seed", "-1"], ["seed", "-1", "0 or more"]),
        (["serve", "--also", "a=b", "--also", "a=c"], ["also", "'a' is there twice"]),
        (["serve", "smollm2-135m", "--also", "smollm2-135m=x"], ["also", "the first model"]),
        (["serve", "--metrics-prefix", "a b"], ["metrics_prefix", "letters, digits"]),
        (["generate", "--model", "[/red]x", "hi"], ["[/red]x"]),
        (["generate", "--model", "x[bold]y:smile:", "hi"], ["x[bold]y:smile:"]),
        pytest.param(
            ["generate", "--kv-cache-memory-bytes", "1000", "hi"],
            ["kv_cache_memory_bytes", "raise it"],
            marks=pytest.mark.weights,
        ),
        pytest.param(
            ["generate", "--json", "--regex", "(", "hi"],
            ["error: regex: at 1(8): invalid regex"],
            marks=pytest.mark.weights,
        ),
        pytest.param(
            ["generate", "--json", "hello " * 9000],
            ["error: prompt: the prompt is too long", "shorten it"],
            marks=pytest.mark.weights,
        ),
    ],
)
def test_bad_input_is_one_line_that_names_the_field_and_the_remedy(arguments, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    check_refusal(said.out, said.err, words)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["generate", "smollm2-135m", "hi"], "generate -m MODEL PROMPT"),
        (["batch", "smollm2-135m", "in", "out"], "batch -m MODEL IN OUT"),
        (["train", "head", "smollm2-135m", "eagle3"], "train head -m MODEL FAMILY"),
        (["place", "case.yaml"], "place --case FILE"),
        (["models", "hi"], None),
        (["chat", "smollm2-135m", "hi"], None),
    ],
)
def test_an_argument_too_many_may_be_the_model_or_the_case(command, told):
    result = runner.invoke(app, command)
    said = " ".join(result.stderr.replace("│", " ").split())
    assert result.exit_code == 2 and "unexpected extra argument" in said
    assert ("goes to -" in said) is (told is not None)
    assert told is None or f"paceline {told}" in said


def test_a_schema_is_a_file_or_itself(tmp_path):
    schema = '{"type": "object"}'
    (tmp_path / "schema.json").write_text(schema)
    for given in (schema, f"\n {schema}", str(tmp_path / "schema.json")):
        asked = Answer(json_schema=given).params().structured_outputs
        assert asked is not None and json.loads(asked["json"]) == {"type": "object"}


def test_python_runs_the_package():
    done = subprocess.run([sys.executable, "-m", "paceline", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, invoke("--version"))


def test_a_warning_is_one_line_without_its_place_in_the_code(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["paceline", "models"])
    warns = partial(warnings.warn, "a [head] is passed over", HeadWarning, stacklevel=1)
    monkeypatch.setattr("paceline.cli.main.app", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        main()
    assert capsys.readouterr().err == "warning: a [head] is passed over\n"


def test_a_refusal_is_the_same_in_a_process_of_its_own():
    command = [sys.executable, "-m", "paceline.cli.main", "generate", "--temperature", "-1", "hi"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    check_refusal(done.stdout, done.stderr, ["temperature", "greedy"])


def check_refusal(output, errors, words):
    assert not output
    assert errors.strip().startswith("error:")
    assert len(errors.strip().splitlines()) == 1
    assert "Traceback" not in errors
    for word in words:
        assert word in errors


def ended(arguments, **how):
    """Exit status and standard error of a command in a process of its own."""
    command = [sys.executable, "-m", "paceline.cli.main", *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, **{"stdout": subprocess.DEVNULL} | how)
    return done.returncode, done.stderr.decode()


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
@pytest.mark.parametrize("command", [["models"], ["--help"], ["theory", "table", "--json"]])
def test_a_full_disk_is_one_line(command):
    with open("/dev/full", "w") as full:
        code, said = ended(command, stdout=full)
    assert code == 2 and said == "error: the output cannot be written (No space left on device)\n"


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_an_answer_to_a_closed_standard_output_is_an_error():
    program = f"exec {sys.executable} -m paceline.cli.main"
    for command, code in (("models", 2), ("theory table --json", 2), ("pull no-such-model", 2)):
        done = subprocess.run(["sh", "-c", f"{program} {command} >&-"], stderr=subprocess.PIPE)
        assert done.returncode == code and done.stderr.decode().startswith("error: ")
        closed = "the output cannot be written (Bad file descriptor)" in done.stderr.decode()
        assert closed is not command.startswith("pull")


def test_standard_input_that_is_no_text_is_one_line():
    code, said = ended(["generate", "-"], input=b"ok \xff\xfe")
    assert (code, said) == (2, "error: prompt: standard input is not UTF-8 (byte 3 is 0xff); convert it\n")


def test_a_terminal_without_a_character_does_not_end_an_answer():
    script = "import sys; from paceline.cli import main as m; m.app = lambda: print('\u2713'); m.main()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"?\n", b"")


def test_the_version_is_told():
    assert invoke("--version").strip() == f"paceline {metadata.version('paceline')}"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("requests.jsonl", "holds the requests"),
        (".", "is a folder"),
        ("pipe", "is no file"),
        ("other.jsonl", "holds requests, not answers"),
        ("text", "something else"),
        ("nowhere/answers.jsonl", "nowhere does not exist"),
    ],
)
def test_batch_asks_first_whether_answers_can_be_kept(tmp_path, target, problem):
    requests = tmp_path / "requests.jsonl"
    body = {"messages": [{"role": "user", "content": "hi"}]}
    requests.write_text(json.dumps({"custom_id": "a", "url": "/v1/chat/completions", "body": body}) + "\n")
    (tmp_path / "other.jsonl").write_text('{"custom_id": "a", "url": "x"}\n')
    (tmp_path / "text").write_text("hello\n")
    os.mkfifo(tmp_path / "pipe")
    result = runner.invoke(app, ["batch", str(requests), str(tmp_path / target)])
    assert isinstance(result.exception, InvalidParameter) and problem in str(result.exception)


def test_batch_wants_a_request(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    result = runner.invoke(app, ["batch", str(tmp_path / "empty.jsonl"), str(tmp_path / "out.jsonl")])
    assert isinstance(result.exception, InvalidParameter) and "is empty" in str(result.exception)


def test_ctrl_c_in_a_batch_tells_how_to_go_on(tmp_path, monkeypatch):
    async def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.cli.batch._run", interrupted)
    requests, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"messages": [{"role": "user", "content": "hi"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    requests.write_text(json.dumps(line))
    result = runner.invoke(app, ["batch", str(requests), str(answers)])
    assert result.exit_code == 130
    assert f"start the same command again to go on: {answers} keeps the answers" in result.stderr.replace("\n", "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--num-decodes", "-1"), "num_decodes: -1 is less than 0"),
        (("--rows", "1", "--rows", "8"), "num_decodes: 8 requests fill every budget of [1, 8]"),
        (("--target-ms", "-5"), "target_ms: -5 is not above 0"),
        (("--target-ms", "nan"), "target_ms: nan is not above 0"),
        (("--plot", "x.foo"), "plot: cannot write 'x.foo'"),
        (("--draft-model", "nowhere"), "model 'nowhere'"),
    ],
)
def test_tune_says_before_it_measures_what_cannot_be_chosen(options, says, monkeypatch):
    monkeypatch.setattr("paceline.cli.tune._profile_of", lambda *_: pytest.fail("measured"))
    result = runner.invoke(app, ["tune", *options])
    assert isinstance(result.exception, PacelineError), result.output
    assert says in str(result.exception)


def test_tune_measures_nothing_for_a_target_that_no_pass_meets(base_model, monkeypatch):
    monkeypatch.setattr("paceline.evaluation.tune.profile_model", lambda *_: pytest.fail("measured"))
    result = runner.invoke(app, ["tune", "--model", base_model, "--target-ms", "0.001"])
    assert isinstance(result.exception, InvalidParameter), result.output
    assert "target_ms: 0.001 ms, and a pass of one row alone takes" in str(result.exception)


def test_a_single_drafted_token_is_one():
    seconds = {0: {1: 0.01, 2: 0.0101, 4: 0.02}}
    profile = Profile("m", "", "float32", "numba", 1, "", seconds, seconds)
    assert "checks 1 drafted token takes" in _verdict(profile)


@pytest.mark.parametrize(
    ("option", "value"), [("output", "/dev/null/x.json"), ("plot", "/dev/null/x.png"), ("context", "-5")]
)
def test_tune_asks_first_whether_its_profile_can_be_kept(option, value):
    result = runner.invoke(app, ["tune", "--model", "nowhere", f"--{option}", value])
    assert isinstance(result.exception, InvalidParameter) and result.exception.field == option


def test_ctrl_c_while_the_commands_are_imported_is_no_traceback():
    """With a finder in the place of the person who presses it."""
    program = """
import sys
import time
class Impatient:
    def find_spec(self, name, *more):
        if name == "paceline.cli.generate":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Impatient())
from paceline.cli import run
run()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["bench", "--speculative-config", "{}"],
            "--speculative-config: is not known here.*bench and advise take --spec",
        ),
        (["generate", "--enforce-eager", "hi"], "--enforce-eager: .*leave it out"),
        (["serve", "--gpu-memory-utilization=0.9"], "--gpu-memory-utilization: .*use --kv-cache-memory-bytes"),
        (["serve", "--no-enable-prefix-caching"], "--no-enable-prefix-caching: .*leave it out"),
        (["bench", "--num-speculative-tokens", "3"], "use --num-draft-tokens"),
        (["serve", "--ctx-size", "4096"], "use --max-model-len$"),
        (["generate", "--temp", "1", "hi"], "use --temperature; requests to a server have temperature$"),
        (["serve", "--temp", "1"], "requests to a server have temperature; --temperature is of paceline generate, "),
        (["bench", "--model-draft", "m"], "use --draft-model; --draft-model is of paceline generate, "),
        (["generate", "--prompt", "hi"], "paceline generate PROMPT"),
    ],
)
def test_an_option_of_vllms_is_refused_with_ours(arguments, says):
    result = runner.invoke(app, arguments)
    assert isinstance(result.exception, InvalidParameter)
    assert re.search(says, str(result.exception))


def test_an_option_of_nobodys_is_refused_as_before():
    result = runner.invoke(app, ["generate", "--no-such-thing", "hi"])
    assert result.exit_code == 2 and "No such option: --no-such-thing" in result.output
    assert "commands that have it" not in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["generate", "--num-cpus", "3", "hi"], "No such option: --num-cpus; commands that have it: serve"),
        (["run", "smollm2-135m"], "No such command 'run'. Here it is: paceline generate, or paceline chat."),
        (["ls"], "Here it is: paceline models."),
    ],
)
def test_what_is_elsewhere_is_named(arguments, told):
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2 and told in " ".join(result.output.replace("│", " ").split())


def test_commands_of_other_programs_are_called_otherwise_here_by_names_that_exist():
    from paceline.cli.main import _ELSEWHERE

    commands = typer.main.get_command(app).commands
    assert set(_ELSEWHERE).isdisjoint(commands)
    assert {told.split()[0].rstrip(",") for told in _ELSEWHERE.values()} <= set(commands)


def test_no_option_of_ours_has_a_hint_and_every_hint_names_options_of_ours():
    from paceline.vllm_names import COMMAND_LINE

    commands = typer.main.get_command(app).commands
    names = ("serve", "bench", "generate")
    serve, bench, generate = [{option for each in commands[name].params for option in each.opts} for name in names]
    named = {word.rstrip(",;") for remedy in COMMAND_LINE.values() for word in remedy.split() if word.startswith("--")}
    assert named - {"--spec"} <= serve | generate and "--spec" in bench
    assert {"--" + name.replace("_", "-") for name in COMMAND_LINE} & serve == {"--speculative-config"}


VLLMS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
DRAFTS = [
    (json.dumps(VLLMS), SpeculativeConfig("ngram", 3, options={"prompt_lookup_max": 2})),
    ('{"model": "small", "rule": "p/q"}', SpeculativeConfig("auto", None, "small", "p/q")),
    ('{"method": "none"}', None),
]


@pytest.mark.parametrize(("given", "config"), DRAFTS, ids=[text for text, _ in DRAFTS])
@pytest.mark.parametrize(
    "command", [["generate", "hi"], ["chat"], ["audit"], ["batch", "IN", "OUT"], ["serve"]], ids=str
)
def test_how_to_draft_is_read_from_vllms_json(command, given, config, tmp_path, monkeypatch):
    seen = []

    def config_of(drafting):
        seen.append(of(drafting))
        raise KeyboardInterrupt  # before a model is loaded

    of = Drafting.config
    monkeypatch.setattr(Drafting, "config", config_of)
    (tmp_path / "IN").write_text(json.dumps({"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}))
    arguments = [str(tmp_path / each) if each.isupper() else each for each in command]
    result = runner.invoke(app, [*arguments, "--speculative-config", given])
    assert result.exit_code == 130 and seen == [config]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["{"], 'speculative_config: \'{\' is no JSON object; write e.g. \'{"method": "ngram"'),
        (["[1]"], "speculative_config: '[1]' is no JSON object"),
        (["null"], "speculative_config: 'null' is no JSON object"),
        (["{}"], "method: is missing in speculative"),
        (['{"method": "ngram", "num_tokens": 4}'], "num_tokens: is an unknown configuration key"),
        (['{"method": "ngram"}', "-k", "3"], "num_draft_tokens: is given beside --speculative-config"),
        (['{"method": "ngram"}', "--draft", "suffix"], "draft: is given beside --speculative-config"),
    ],
)
def test_json_that_says_no_way_to_draft_is_refused(given, says):
    result = runner.invoke(app, ["generate", "hi", "--speculative-config", *given])
    assert isinstance(result.exception, InvalidParameter) and says in str(result.exception)


@pytest.mark.parametrize(
    "text", [f"speculative-config: '{json.dumps(VLLMS)}'", f"speculative-config: {json.dumps(VLLMS)}"]
)
def test_a_file_of_options_may_hold_how_to_draft_as_text_or_as_it_is(text, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(options, "config_of_json", lambda text: seen.append(json.loads(text)))
    (tmp_path / "serve.yaml").write_text(text)
    runner.invoke(app, ["serve", "--config", str(tmp_path / "serve.yaml"), "--max-num-seqs", "0"])
    assert seen == [VLLMS]
