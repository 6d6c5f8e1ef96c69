"""The playground: what is served, that nothing foreign is loaded, and in a browser that it does what it says."""

import asyncio
import hashlib
import json
import re
import shutil
import threading
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

from paceline.engine.async_llm import AsyncLLM
from paceline.serving.http.app import build_app
from paceline.serving.http.playground import POLICY
from paceline.serving.http.run import Server, bind, run
from paceline.serving.models.local import LocalBackend
from paceline.serving.models.model_spec import ModelSpec
from paceline.serving.settings import Settings
from tests.serving.conftest import MODEL

PAGE = files("paceline.serving") / "page"
PROMPT = "abcabcabcabc"
AXE = Path(__file__).parent / "vendor" / "axe.min.js"


def test_it_is_served_with_a_strict_policy(serving):
    async def scene():
        async with serving() as client:
            page = await client.get("/")
            assert page.status_code == 200 and "<title>Paceline</title>" in page.text
            for path in re.findall(r'(?:href|src)="(/[^"]+)"', page.text):
                part = await client.get(path)
                assert part.status_code == 200, path
                assert part.headers["content-security-policy"] == POLICY
                assert part.headers["x-content-type-options"] == "nosniff"
            assert (await client.get("/page/secret.txt")).status_code == 404
            assert (await client.get("/page/..%2fapp.py")).status_code == 404
        async with serving(Settings(page=False)) as client:
            assert (await client.get("/")).status_code == 404
        async with serving(Settings(api_keys=("k",))) as client:
            assert (await client.get("/")).status_code == (await client.get("/page/app.js")).status_code == 200

    asyncio.run(scene())


@pytest.mark.parametrize("name", sorted(each.name for each in PAGE.iterdir()))
def test_it_needs_nothing_from_elsewhere(name):
    source = (PAGE / name).read_text(encoding="utf-8")
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", source)
    assert not re.findall(r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b|new Function", source)
    assert not re.findall(r"<script(?! type=\"module\" src=)|\sstyle=|\son[a-z]+=\"", source)
    for imported in re.findall(r'from "\./([^"]+)"', source):
        assert (PAGE / imported).is_file()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def address(make_llm):
    """A server in a thread of this process."""
    backend = LocalBackend([ModelSpec(MODEL, "tiny")], lambda spec: AsyncLLM(make_llm("ngram")))
    app, bound, ready = build_app(backend), bind("127.0.0.1", 0), threading.Event()
    server = Server(app, app.front.gate, 1.0, ready.set)
    thread = threading.Thread(target=lambda: run(server.serve(sockets=[bound])))
    thread.start()
    assert ready.wait(60)
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.should_exit = True
    thread.join(30)


@pytest.fixture
def page(browser, address):
    """The page, with everything that a browser complains of in its `complaints`."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    opened.complaints = []
    opened.on("console", lambda message: message.type == "error" and opened.complaints.append(message.text))
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("request", lambda r: r.url.startswith((address, "data:")) or opened.complaints.append(r.url))
    opened.goto(address)
    opened.wait_for_function("() => document.getElementById('facts').textContent.includes('ngram')")
    opened.fill("[name=max_tokens]", "40")
    yield opened
    assert opened.complaints == []
    context.close()


def said(page):
    page.wait_for_selector(".assistant .tools")
    return page.locator(".assistant .text").last


@pytest.mark.browser
def test_a_conversation_shows_where_its_tokens_come_from(page, address):
    page.keyboard.press("Tab")
    page.fill("#prompt", PROMPT)
    page.press("#prompt", "Enter")
    text = said(page).text_content()
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 40, "seed": 1,
            "paceline": {"trace": True}}  # fmt: skip
    told = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60).json()["choices"][0]
    assert text == told["message"]["content"]
    classes = page.eval_on_selector_all(".assistant .text span", "all => all.map(one => one.className)")
    assert set(classes) <= {"drafted", "bonus", "recovered", "target"} and len(classes) == len(
        told["paceline"]["tokens"]
    )
    assert "passes of the model" in page.text_content("#stats")

    page.click(".assistant button:has-text('Again')")
    page.wait_for_function("() => !document.getElementById('send').disabled")
    assert said(page).text_content() == text
    page.click(".user button:has-text('Edit')")
    assert page.input_value("#prompt") == PROMPT and page.locator(".message").count() == 0


@pytest.mark.browser
def test_a_race_finds_both_texts_identical(page):
    page.fill("#prompt", PROMPT)
    page.click("#race")
    page.wait_for_function("() => document.getElementById('verdict').textContent.startsWith('identical')")
    assert page.text_content("#verdict").startswith("identical: yes")
    plain, drafted = page.locator(".lanes .text").all_text_contents()
    assert plain == drafted != ""
    assert page.locator("[data-lane=plain] .drafted").count() == 0


@pytest.mark.browser
def test_speed_is_by_the_servers_clock_where_a_browser_reads_everything_at_once(page):
    told = []

    def whole(route):
        answer = route.fetch()
        told.append(answer.text())
        route.fulfill(response=answer)

    page.route("**/v1/chat/completions", whole)
    page.fill("#prompt", PROMPT)
    page.press("#prompt", "Enter")
    said(page)
    events = [json.loads(line[6:]) for line in told[0].splitlines() if line.startswith("data: {")]
    count = sum(len(c["paceline"]["tokens"]) for event in events for c in event["choices"] if "paceline" in c)
    (stats,) = [choice for event in events if "paceline" in event for choice in event["paceline"]["choices"]]
    seconds = stats["draft_seconds"] + stats["verify_seconds"] + stats["other_seconds"]
    assert page.text_content(".assistant .tools").endswith(f"{(count - 1) / seconds:.1f} tokens/s, ended by length")


@pytest.mark.browser
def test_a_schema_is_followed_and_settings_stay_in_the_link(page, address):
    pytest.importorskip("llguidance")
    page.click("summary:has-text('JSON schema')")
    page.fill("[name=schema]", '{"enum": ["left", "right"]}')
    page.fill("[name=temperature]", "0.7")
    page.press("[name=temperature]", "Tab")
    page.fill("#prompt", "which way?")
    page.press("#prompt", "Enter")
    assert said(page).text_content() in ('"left"', '"right"')
    assert "temperature=0.7" in page.url and "enum" in page.url
    page.fill("[name=schema]", "{")
    page.fill("#prompt", "again?")
    page.press("#prompt", "Enter")
    page.wait_for_selector("#log .error:has-text('the JSON schema in the panel is no JSON')")


@pytest.mark.browser
def test_a_prompt_that_was_refused_is_in_its_field_again_and_the_error_in_view(page, address):
    page.fill("#prompt", PROMPT + "\n" * 80 + PROMPT)
    page.press("#prompt", "Enter")
    said(page)
    page.fill("[name=temperature]", "9999")
    page.fill("#prompt", "why?")
    page.press("#prompt", "Enter")
    page.wait_for_selector("#log .error:has-text('temperature')")
    assert page.input_value("#prompt") == "why?" and page.locator(".message").count() == 2
    shown = "() => document.querySelector('#log .error').getBoundingClientRect().bottom"
    assert page.evaluate(shown) <= page.evaluate("() => document.getElementById('log').getBoundingClientRect().bottom")
    page.fill("[name=temperature]", "0")
    with page.expect_request(f"{address}/v1/chat/completions") as request:
        page.press("#prompt", "Enter")
    assert [each["role"] for each in request.value.post_data_json["messages"]] == ["user", "assistant", "user"]
    page.wait_for_function("() => !document.getElementById('send').disabled")
    assert page.complaints.pop().startswith("Failed to load resource")  # the browser's own words about the status 400


@pytest.mark.browser
@pytest.mark.parametrize("reads", [True, False])
def test_somebody_who_reads_further_up_is_not_moved_by_an_answer(page, reads):
    page.fill("#prompt", PROMPT + "\n" * 80 + PROMPT)
    page.press("#prompt", "Enter")
    said(page)

    def answer(route):
        told = route.fetch()
        if reads:
            page.evaluate("() => { document.getElementById('log').scrollTop = 7; }")
        route.fulfill(response=told)

    page.route("**/v1/chat/completions", answer)
    page.fill("#prompt", PROMPT)
    page.press("#prompt", "Enter")
    page.wait_for_function("() => document.querySelectorAll('.assistant .tools').length === 2")
    from_end = "() => { const log = document.getElementById('log'); return log.scrollHeight - log.clientHeight; }"
    place, end = page.evaluate("() => document.getElementById('log').scrollTop"), page.evaluate(from_end)
    assert place == 7 if reads else abs(place - end) < 2


@pytest.mark.browser
def test_where_a_key_is_entered_is_told_and_it_is_used(page, address):
    def keyed(route):
        if route.request.headers.get("authorization") == "Bearer secret":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"message": "no valid API key; send Authorization: Bearer KEY"}})

    page.route("**/api/state", keyed)
    page.goto(f"{address}/?again")
    page.wait_for_function("() => document.getElementById('facts').textContent.includes('under Server')")
    page.click("summary:has-text('Server')")
    page.fill("#key", "secret")
    page.press("#key", "Tab")
    page.wait_for_function("() => document.getElementById('facts').textContent.includes('ngram')")
    assert page.complaints.pop().startswith("Failed to load resource")  # the browser's own words about the status 401


@pytest.mark.browser
def test_a_stopped_answer_is_not_measured_by_the_one_before_it(page):
    page.fill("#prompt", PROMPT)
    page.press("#prompt", "Enter")
    page.wait_for_selector("#passes svg")
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    page.fill("#prompt", PROMPT)
    page.press("#prompt", "Enter")
    page.keyboard.press("Escape")
    page.wait_for_selector(".tools:has-text('ended by stopped')")
    assert page.locator("#passes svg, #positions svg").count() == 0


@pytest.mark.browser
def test_a_setting_that_was_cleared_stays_so_in_the_link(page):
    page.fill("[name=seed]", "")
    page.press("[name=seed]", "Tab")
    page.reload()
    page.wait_for_function("() => document.getElementById('facts').textContent.includes('ngram')")
    assert page.input_value("[name=seed]") == ""
    assert page.input_value("[name=max_tokens]") == "40"
    page.goto(page.url.replace("seed=", "seed=5"))  # another link in the same tab, which does not load the page again
    assert page.input_value("[name=seed]") == "5"


@pytest.mark.browser
def test_a_clusters_models_are_offered_and_the_chosen_one_is_told_of(page, address):
    """A cluster tells neither drafter nor counters of passes."""
    state = {"models": {"a": {"max_model_len": 64}, "b": {"max_model_len": 32}}, "metrics": {}, "requests": 0}
    page.route("**/api/state", lambda route: route.fulfill(json=state))
    page.goto(f"{address}/?again")
    page.wait_for_function("() => document.getElementById('facts').textContent === 'a, 64 tokens'")
    page.click("summary:has-text('Server')")
    page.select_option("#model", "b")
    page.wait_for_function("() => document.getElementById('facts').textContent === 'b, 32 tokens'")


@pytest.mark.browser
def test_stop_ends_an_answer_and_a_phone_shows_all(page):
    page.fill("[name=max_tokens]", "400")
    page.fill("#prompt", PROMPT)
    page.press("#prompt", "Enter")
    page.wait_for_selector(".assistant .text span")
    page.keyboard.press("Escape")
    said(page)
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    page.click("#theme")
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert dark != page.evaluate("() => getComputedStyle(document.body).backgroundColor")


def serious(page):
    """What axe-core finds wrong that is serious or worse, by rule and element."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run(document)")["violations"]
    return [(each["id"], node["html"][:120]) for each in found if each["impact"] in ("serious", "critical")
            for node in each["nodes"]]  # fmt: skip


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.fill("#prompt", PROMPT)
    page.click("#race")
    page.wait_for_function("() => document.getElementById('verdict').textContent.startsWith('identical')")
    page.evaluate("() => document.querySelectorAll('details').forEach(each => { each.open = true; })")
    for _ in range(2):
        assert serious(page) == []
        page.click("#theme")


@pytest.mark.browser
def test_every_pass_shows_its_tree_and_what_stood(page, address):
    """Of an answer that was predicted, so that many a draft stands."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 40, "seed": 1}
    url = f"{address}/v1/chat/completions"
    text = httpx.post(url, json=body, timeout=60).json()["choices"][0]["message"]["content"]
    page.click("summary:has-text('Drafts')")
    page.fill("[name=prediction]", text)
    page.fill("#prompt", PROMPT)
    with page.expect_response(url) as response:
        page.press("#prompt", "Enter")
    said(page)
    answer = response.value.text()
    told = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    passes = [each["choices"][0]["paceline"] for each in told if each["choices"]]
    passes = [each for each in passes if each["tokens"]]
    assert page.get_attribute("#steps input", "max") == str(len(passes))
    number = next(number for number, each in enumerate(passes) if each.get("step", {}).get("path"))
    step = passes[number]["step"]
    page.fill("#steps input", str(number + 1))
    assert page.locator("#steps .node").count() == len(step["nodes"])
    assert page.locator("#steps .node.stood").count() == len(step["path"]) > 0
    assert page.locator("#steps .parts").text_content() == "decode 1" + f"draft {len(step['nodes'])}"
    said_here = "".join(each["text"] for each in passes[number]["tokens"])
    assert said_here.startswith("".join(step["nodes"][node]["text"] for node in step["path"]))


@pytest.mark.browser
def test_contrast_and_names(page):
    """Text stands out by 4.5 to 1 in both themes, and every control has a name."""
    measure = """() => {
      const probe = document.createElement('canvas').getContext('2d');
      const parts = colour => { probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
        return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3); };
      const light = colour => { const [r, g, b] = parts(colour).map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const names = ['--ink', '--dim', '--drafted', '--bonus', '--recovered', '--bad'];
      const style = getComputedStyle(document.documentElement), back = light(style.getPropertyValue('--card'));
      return names.map(name => light(style.getPropertyValue(name)))
        .map(own => (Math.max(own, back) + 0.05) / (Math.min(own, back) + 0.05));
    }"""
    for _ in range(2):
        assert min(page.evaluate(measure)) >= 4.5
        page.click("#theme")
    unnamed = page.eval_on_selector_all(
        "button, input, select, textarea, meter",
        "all => all.filter(e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).map(e => e.outerHTML)",
    )
    assert unnamed == []


def test_what_is_vendored_is_what_its_list_says():
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() in (AXE.parent / "README.md").read_text(encoding="utf-8")


def test_it_is_small():
    """Nothing is bundled."""
    assert sum(len(each.read_bytes()) for each in PAGE.iterdir()) < 60_000
