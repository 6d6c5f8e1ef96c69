"""The playground: what is served, that nothing foreign is loaded, and in a browser that it does what it says."""

import asyncio
import re
import shutil
import threading
from importlib.resources import files

import httpx
import pytest

from paceline.engine.async_llm import AsyncLLM
from paceline.serving.app import build_app
from paceline.serving.local import LocalBackend
from paceline.serving.model_spec import ModelSpec
from paceline.serving.playground import POLICY
from paceline.serving.run import Server, bind
from paceline.serving.settings import Settings
from tests.serving.conftest import MODEL

PAGE = files("paceline.serving") / "page"
PROMPT = "abcabcabcabc"


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
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
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
    page.wait_for_selector("#log .error")


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


def test_it_is_small():
    """Nothing is bundled."""
    assert sum(len(each.read_bytes()) for each in PAGE.iterdir()) < 60_000
