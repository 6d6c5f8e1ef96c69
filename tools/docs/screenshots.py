"""`python tools/docs/screenshots.py`: the playground after a chat and a race, as docs/serving.md shows it.

Runs `paceline serve` with the default model and drives it with Debian's chromium. Wants a quiet machine: the page shows
tokens per second.
"""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
from playwright.sync_api import Browser, sync_playwright

PLOTS = Path(__file__).parents[2] / "docs" / "plots"
SIZES = {"playground.png": (1280, 900), "playground-phone.png": (390, 844)}
CHAT = "Name three rivers of Europe, and say one thing about each."
RACE = (
    "Repeat this text word for word:\n\nThe harbour bridge was closed to lorries on Monday after an inspection found "
    "cracks in two of its eight steel hangers. The city's chief engineer said that the bridge is safe for cars and "
    "bicycles, because the remaining six hangers carry the load with a wide margin."
)


def main() -> None:
    chromium = shutil.which("chromium") or sys.exit("there is no chromium: apt-get install chromium")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "paceline.cli.main", "serve", "smollm2-135m", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not is_ready(address):
            time.sleep(0.5)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for name, (width, height) in SIZES.items():
                take(browser, address, PLOTS / name, width, height)
            browser.close()
    finally:
        server.terminate()
        server.wait(60)


def is_ready(address: str) -> bool:
    """Whether the server has loaded its model."""
    try:
        return httpx.get(f"{address}/ready").status_code == 200
    except httpx.TransportError:
        return False


def take(browser: Browser, address: str, path: Path, width: int, height: int) -> None:
    """Chat and race in a window of that size, and save the whole page."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(120_000)
    page.goto(address)
    page.fill("[name=max_tokens]", "90")
    page.fill("#prompt", CHAT)
    page.press("#prompt", "Enter")
    page.wait_for_selector(".assistant .tools")
    page.fill("#prompt", RACE)
    page.click("#race")
    page.wait_for_function("() => document.getElementById('verdict').textContent.includes('identical')")
    page.screenshot(path=path, full_page=True)
    page.close()


if __name__ == "__main__":
    main()
