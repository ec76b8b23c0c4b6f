# SPDX-License-Identifier: Apache-2.0
"""The page on a phone, by keyboard alone, for a screen reader (axe-core's rules), and calm."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.server.gateway.browser import DESKTOP, PHONE, Tab, open_tab
from tests.server.gateway.test_page import SEVEN, painting

MODELS = ("demo", "repaints", "clips", "sounds")
SMALLEST_PX = 40

TARGETS = """() =>
    [...document.querySelectorAll("button, select, input, textarea, summary, a.button")]
    .filter((element) => element.checkVisibility() && element.type !== "range")
    .map((element) => [element.outerHTML.slice(0, 90), element.getBoundingClientRect().height])"""

pytestmark = pytest.mark.timeout(300)


def violations(tab: Tab) -> list[str]:
    """What axe-core finds, as texts."""
    found = Axe().run(tab.page).response["violations"]
    return [f"{v['id']}: {node['html'][:200]}" for v in found for node in v["nodes"]]


def fill_up(tab: Tab, model: str, folder: Path) -> None:
    """Open everything that the page can show for a model."""
    tab.open(model)
    if model == "repaints":
        tab.page.set_input_files("#in-image", painting(folder / "picture.png"))
        tab.page.focus("canvas")
        tab.page.keyboard.press("Space")
    tab.make(**SEVEN)
    for summary in tab.page.locator("summary").all():
        summary.click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing(
    browser: Browser, page_gateway: str, tmp_path: Path, scheme: str, viewport: dict[str, int]
) -> None:
    options = {"viewport": viewport, "color_scheme": scheme, "reduced_motion": "reduce"}
    with open_tab(browser, page_gateway, **options) as tab:
        tab.open()
        assert violations(tab) == []
        for model in MODELS:
            fill_up(tab, model, tmp_path)
            assert violations(tab) == []
        tab.fill(num_inference_steps="many")
        tab.page.click("#create")
        tab.expect_status("see the field")
        assert violations(tab) == []
        tab.page.click("#clear")
        assert violations(tab) == []


@pytest.mark.parametrize("model", MODELS)
def test_a_phone_shows_all_without_scrolling_sideways(
    browser: Browser, page_gateway: str, tmp_path: Path, model: str
) -> None:
    options = {"viewport": PHONE, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
    with open_tab(browser, page_gateway, **options) as tab:
        fill_up(tab, model, tmp_path)
        assert tab.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        small = [target for target in tab.page.evaluate(TARGETS) if target[1] < SMALLEST_PX]
        assert small == []


def test_a_mask_can_be_painted_with_a_finger(
    browser: Browser, page_gateway: str, tmp_path: Path
) -> None:
    with open_tab(browser, page_gateway, viewport=PHONE, has_touch=True) as tab:
        tab.open("repaints")
        tab.page.set_input_files("#in-image", painting(tmp_path / "picture.png"))
        tab.page.tap("canvas")
        expect(tab.page.locator(".painter [role=status]")).to_contain_text("is painted")
        assert tab.page.locator("canvas").evaluate("c => getComputedStyle(c).touchAction") == "none"


def test_by_keyboard_alone(tab: Tab) -> None:
    tab.open("demo")
    tab.page.evaluate("document.activeElement.blur()")
    press = tab.page.keyboard.press
    press("Tab")
    expect(tab.page.locator(".skip")).to_be_focused()
    press("Enter")
    expect(tab.page.locator("#result")).to_be_focused()
    press("Shift+Tab")
    expect(tab.page.locator("#create")).to_be_focused()
    tab.page.focus("#model")
    press("Tab")
    expect(tab.page.locator("#in-prompt")).to_be_focused()
    tab.page.keyboard.type("a handwritten seven")
    press("Control+Enter")
    tab.expect_status("Done in")
    reached = set()
    for _ in range(60):
        press("Tab")
        reached.add(
            tab.page.evaluate(
                """() => {
                    const focused = document.activeElement;
                    const { outlineStyle, outlineWidth } = getComputedStyle(focused);
                    const seen = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
                    const name = focused.id || focused.textContent.trim();
                    return name + (seen || focused === document.body ? "" : " unseen");
                }"""
            )
        )
    wanted = {"Same seed again", "New seed", "Use these settings", "Download", "copy", "clear"}
    assert wanted <= reached
    assert not [name for name in reached if name.endswith(" unseen")]


def test_progress_is_told_to_a_screen_reader_now_and_then(tab: Tab) -> None:
    tab.page.add_init_script(
        """window.said = []; document.addEventListener("DOMContentLoaded", () => {
            const status = document.querySelector("#status");
            new MutationObserver(() => said.push(status.textContent))
                .observe(status, { childList: true, characterData: true, subtree: true });
        });"""
    )
    tab.open("demo")
    tab.make(**SEVEN, num_inference_steps=80)
    said = tab.page.evaluate("said")
    assert said[0] == "Working…"
    assert said[1:-1] == ["Step 20 of 80", "Step 40 of 80", "Step 60 of 80"]
    assert said[-1].startswith("Done in")
    assert tab.page.get_attribute("#status", "role") == "status"


def test_nothing_moves_where_that_is_asked_for(browser: Browser, page_gateway: str) -> None:
    with open_tab(browser, page_gateway, reduced_motion="reduce") as tab:
        tab.open("demo")
        tab.fill(**SEVEN, num_inference_steps=1000)
        tab.page.click("#create")
        expect(tab.page.locator("#elapsed")).to_contain_text("Step ")
        assert tab.page.evaluate("document.getAnimations().length") == 0
        tab.page.click("#stop")
        tab.expect_status("Stopped")
