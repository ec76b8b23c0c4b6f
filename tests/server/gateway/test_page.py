# SPDX-License-Identifier: Apache-2.0
"""The page in a real Chromium: making pictures, videos and sound, stopping, seeds, history."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from builder.tritonserver.server import Server
from tests.server.gateway.browser import Tab, open_tab, serve
from tests.server.gateway.calling import triton_metric, wait_for
from tests.server.gateway.serving import serve_gateway
from triton_diffusers.client import DiffusersClient

SEVEN = {"prompt": "a handwritten seven", "seed": 7}
OWN = {"output_format", "output_base64", "output_quality", "preview_every", "width", "height"}
"""Inputs that the page sets by itself, or shows as size and file."""

SHOWN_AS = {"output_format", "output_compression", "response_format", "width, height"}

pytestmark = pytest.mark.timeout(300)


def plain(server: Server, model: str = "demo", **inputs: object) -> bytes:
    """The file that the client gets for the same call, without the gateway."""
    with DiffusersClient(server.grpc_url, model=model) as client:
        (file,) = client.generate(**inputs).media
    return file


def painting(path: Path) -> Path:
    picture = Image.new("RGB", (96, 64), (120, 160, 200))
    picture.paste((220, 180, 60), (30, 10, 70, 50))
    picture.save(path)
    return path


def test_only_the_pages_files_are_served(page_gateway: str) -> None:
    index = httpx.get(page_gateway)
    policy = index.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert (
        httpx.get(page_gateway, headers={"If-None-Match": index.headers["ETag"]}).status_code == 304
    )
    names = [part.split('"')[0] for part in index.text.split('"page/')[1:]]
    assert len(names) > 10
    for name in names:
        file = httpx.get(f"{page_gateway}/page/{name}")
        assert file.status_code == 200, name
        assert "immutable" in file.headers["Cache-Control"]
        assert file.headers["Content-Security-Policy"] == policy
        assert "://" not in file.text.replace("http://www.w3.org/2000/svg", ""), name
    stale = httpx.get(f"{page_gateway}/page/0123456789abcdef/app.js")
    assert stale.headers["Cache-Control"] == "no-cache"
    for path in (
        "page/x/none.js",
        "page/x/index.html",
        "page/x/..%2Fpage.py",
        "page/x/%2Fetc%2Fhosts",
    ):
        assert httpx.get(f"{page_gateway}/{path}").status_code == 404


def test_a_gateway_without_the_page(page_server: Server, tmp_path: Path) -> None:
    with serve(page_server, tmp_path, page=False) as url:
        assert httpx.get(url).status_code == 404


def test_the_first_paint_waits_for_nothing(tab: Tab) -> None:
    tab.open()
    painted, transferred = tab.page.evaluate(
        """() => [
            performance.getEntriesByName("first-contentful-paint")[0].startTime,
            performance.getEntriesByType("resource").reduce((sum, e) => sum + e.decodedBodySize, 0),
        ]"""
    )
    assert painted < 2000
    assert transferred < 150_000


@pytest.mark.parametrize("model", ["demo", "repaints", "varies", "clips", "sounds", "shapes"])
def test_the_form_has_exactly_the_models_inputs(tab: Tab, model: str) -> None:
    tab.open(model)
    told = httpx.get(f"{tab.url}/v1/models/{model}").json()
    expected = {each["name"] for each in told["inputs"]} - OWN
    shown = tab.page.locator(".field .about code").all_text_contents()
    assert len(shown) == len(set(shown))
    assert set(shown) - SHOWN_AS == expected
    steps = next(each for each in told["inputs"] if each["name"] == "num_inference_steps")
    assert tab.page.get_attribute("#in-num_inference_steps", "placeholder") == str(steps["default"])


def test_the_picture_is_the_models_own_and_comes_with_progress_and_previews(
    tab: Tab, page_server: Server
) -> None:
    tab.page.add_init_script(
        """window.seen = []; new MutationObserver(() => {
            if (document.querySelector("img.preview")) seen.push("preview");
            seen.push(document.querySelector("#elapsed")?.textContent);
        }).observe(document, { subtree: true, childList: true, characterData: true });"""
    )
    tab.open("demo")
    for seed in range(8):  # previews' colours are learned from finished calls
        plain(page_server, prompt=f"a handwritten {seed}", seed=seed, output_format="png")
    tab.make(**SEVEN, num_inference_steps=60)
    expected = plain(page_server, **SEVEN, num_inference_steps=60, output_format="png")
    assert tab.result() == expected
    seen = tab.page.evaluate("seen")
    assert "preview" in seen
    assert any(text and text.startswith("Step 30 of 60 · ") for text in seen)
    facts = tab.page.locator(".facts dd").all_text_contents()
    assert facts[0] == "7"
    assert facts[1].endswith(" s")
    assert facts[2] == "64 \N{MULTIPLICATION SIGN} 64"
    assert tab.page.get_attribute("#media img", "alt") == "Picture: a handwritten seven"


def test_same_seed_and_new_seed(tab: Tab) -> None:
    tab.open("demo")
    tab.make(prompt="a handwritten seven", num_inference_steps=4)
    first, seed = tab.result(), tab.page.locator(".facts dd").first.text_content()
    tab.fill(prompt="a handwritten two")
    tab.page.click("text=New seed")
    expect(tab.page.locator("#made li")).to_have_count(2)
    other = tab.page.locator(".facts dd").first.text_content()
    assert other != seed
    assert tab.page.input_value("#in-seed") == ""
    tab.fill(prompt="a handwritten seven", seed=seed)
    tab.page.click("#create")
    expect(tab.page.locator("#made li")).to_have_count(3)
    assert tab.result() == first
    tab.fill(prompt="a handwritten one", seed="")
    tab.page.click("text=Same seed again")
    expect(tab.page.locator("#made li")).to_have_count(4)
    assert tab.page.locator(".facts dd").first.text_content() == seed
    assert tab.result() != first


@pytest.mark.parametrize("model", ["demo", "repaints", "clips"])
def test_stop_stops_the_model(tab: Tab, page_server: Server, tmp_path: Path, model: str) -> None:
    def cancelled() -> float:
        name = "triton_diffusers_requests_total"
        return triton_metric(page_server, name, model=model, outcome="cancelled")

    def running() -> float:
        return triton_metric(page_server, "triton_diffusers_running", model=model)

    before = cancelled()
    tab.open(model)
    if model == "repaints":
        picture = painting(tmp_path / "picture.png")
        tab.page.set_input_files("#in-image", picture)
        tab.page.locator("text=Upload a mask instead").click()
        tab.page.set_input_files("#in-mask_image", picture)
    tab.fill(**SEVEN, num_inference_steps=900)
    tab.page.click("#create")
    expect(tab.page.locator("#elapsed")).to_contain_text("Step " if model == "demo" else " s")
    expect(tab.page.locator("#stop")).to_be_focused()
    wait_for(lambda: running() == 1, 20)
    tab.page.click("#stop")
    tab.expect_status("Stopped after ")
    expect(tab.page.locator("#create")).to_be_focused()
    wait_for(lambda: cancelled() == before + 1 and not running(), 5)
    expect(tab.page.locator("#history")).to_be_hidden()
    tab.make(num_inference_steps=2)


def test_a_painted_mask_says_what_is_repainted(
    tab: Tab, page_server: Server, tmp_path: Path
) -> None:
    picture = painting(tmp_path / "picture.png")
    tab.open("repaints")
    tab.page.set_input_files("#in-image", picture)
    tab.page.locator("canvas").scroll_into_view_if_needed()
    box = tab.page.locator("canvas").bounding_box()
    assert box is not None
    left, top = box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.5
    tab.page.mouse.move(left, top)
    tab.page.mouse.down()
    tab.page.mouse.move(left + box["width"] * 0.4, top, steps=5)
    tab.page.mouse.up()
    tab.make(prompt="a red circle", seed=3)
    mask = tab.download("#input-files a >> nth=1")
    painted = np.asarray(Image.open(io.BytesIO(mask)).convert("RGB"))
    assert painted.shape == (64, 96, 3)
    assert set(np.unique(painted)) == {0, 255}
    assert painted[32, 30:66].min() == 255  # along the stroke
    assert painted[20].max() == painted[44].max() == painted[32, 80:].max() == 0
    inputs = {"prompt": "a red circle", "seed": 3, "output_format": "png"}
    expected = plain(page_server, "repaints", **inputs, image=picture, mask_image=mask)
    assert tab.result() == expected


def test_a_mask_by_keyboard_and_its_eraser(tab: Tab, tmp_path: Path) -> None:
    tab.open("repaints")
    tab.page.set_input_files("#in-image", painting(tmp_path / "picture.png"))
    said = tab.page.locator(".painter [role=status]")
    expect(said).to_have_text("Nothing is painted yet.")
    tab.page.focus("canvas")
    for key in ("Space", "Shift+ArrowRight", "Shift+ArrowRight", "Space"):
        tab.page.keyboard.press(key)
    expect(said).to_have_text("1 % of the picture is painted.")
    for key in (*"+" * 15, "ArrowLeft", "e", "Space"):
        tab.page.keyboard.press(key)
    expect(said).to_have_text("Nothing is painted yet.")
    tab.page.keyboard.press("Control+z")
    expect(said).to_have_text("1 % of the picture is painted.")
    tab.page.click("text=Invert")
    expect(said).to_have_text("99 % of the picture is painted.")
    tab.page.click(".tools >> text=Clear")
    expect(said).to_have_text("Nothing is painted yet.")


@pytest.mark.parametrize("control", ["image", "mask_image"])
def test_a_file_that_is_no_picture_is_refused_at_once(
    tab: Tab, tmp_path: Path, control: str
) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    tab.open("repaints")
    if control == "mask_image":
        tab.page.set_input_files("#in-image", painting(tmp_path / "picture.png"))
        tab.page.click("text=Upload a mask instead")
    tab.page.set_input_files(f"#in-{control}", tmp_path / "notes.txt")
    error = tab.page.locator(f"#in-{control}-error")
    expect(error).to_contain_text("'notes.txt' is no picture")


def test_a_video(tab: Tab, page_server: Server) -> None:
    tab.open("clips")
    tab.make(**SEVEN)
    assert tab.result() == plain(page_server, "clips", **SEVEN, output_format="mp4")
    frames = tab.page.locator("#media video").evaluate(
        "video => video.readyState >= 1 || new Promise(r => video.onloadedmetadata = () => r(true))"
    )
    assert frames


def test_a_sound(tab: Tab, page_server: Server) -> None:
    tab.open("sounds")
    tab.make(**SEVEN)
    assert tab.result() == plain(page_server, "sounds", **SEVEN, output_format="wav")


def test_a_model_without_a_prompt(tab: Tab, page_server: Server) -> None:
    tab.open("shapes")
    expect(tab.page.locator("#in-prompt")).to_have_count(0)
    tab.make(seed=7)
    assert tab.result() == plain(page_server, "shapes", seed=7, output_format="png")


def test_a_model_that_the_page_cannot_show_is_listed_with_the_reason(tab: Tab) -> None:
    tab.open()
    told = tab.page.locator("#model option[value=depths]")
    expect(told).to_be_disabled()
    expect(told).to_contain_text("makes arrays")


def test_the_history_outlives_the_tab_and_can_be_cleared(tab: Tab) -> None:
    tab.open("demo")
    tab.make(**SEVEN, num_inference_steps=3, width=48, height=64)
    made = tab.result()
    tab.open()
    expect(tab.page.locator("#made li")).to_have_count(1)
    tab.page.click("#made button")
    assert tab.result() == made
    tab.page.click("text=Use these settings")
    values = [tab.page.input_value(f"#in-{n}") for n in ("prompt", "seed", "num_inference_steps")]
    assert values == ["a handwritten seven", "7", "3"]
    assert [tab.page.input_value(f"#in-{n}") for n in ("width", "height")] == ["48", "64"]
    tab.page.click("#clear")
    tab.page.click("text=Keep it")
    expect(tab.page.locator("#made li")).to_have_count(1)
    tab.page.click("#clear")
    tab.page.click("text=Clear it")
    expect(tab.page.locator("#history")).to_be_hidden()
    tab.open()
    expect(tab.page.locator("#history")).to_be_hidden()


def test_settings_with_a_picture_are_used_again(tab: Tab, tmp_path: Path) -> None:
    tab.open("varies")
    tab.page.set_input_files("#in-image", painting(tmp_path / "picture.png"))
    tab.make(**SEVEN)
    made = tab.result()
    tab.open("demo")
    tab.page.click("#made button")
    tab.page.click("text=Use these settings")
    assert tab.page.input_value("#model") == "varies"
    expect(tab.page.locator(".chosen .name")).to_have_text("picture.png")
    tab.page.click("#create")
    expect(tab.page.locator("#made li")).to_have_count(2)
    assert tab.result() == made


def test_the_history_is_bounded(tab: Tab) -> None:
    tab.open("demo")
    count, newest = tab.page.evaluate(
        """async () => {
            const { History } = await import(document.querySelector("[href$='history.js']").href);
            const history = new History();
            await history.open();
            const request = { model: "demo", fields: {}, files: [] };
            const media = [new Blob(["x"])];
            for (let at = 0; at < 70; at++) await history.add({ at, request, media });
            const again = new History();
            await again.open();
            return [again.records.length, again.records[0].at];
        }"""
    )
    assert (count, newest) == (60, 69)


@pytest.mark.parametrize(
    ("values", "field", "text"),
    [
        ({"width": 60, "height": 60}, "width", "Nearest size: "),
        ({"num_inference_steps": "many"}, "num_inference_steps", "'many' is no whole number"),
        ({"num_inference_steps": 0}, "num_inference_steps", "num_inference_steps"),
        ({"extra": '{"nonsense": 1}'}, "extra", "nonsense"),
        ({"prompt": ""}, "prompt", "prompt is missing: 'demo'"),
        ({"num_images_per_prompt": 0}, "num_images_per_prompt", "greater than or equal to 1"),
    ],
)
def test_an_error_stands_beside_its_field(
    tab: Tab, values: dict[str, object], field: str, text: str
) -> None:
    tab.open("demo")
    tab.page.click("#more summary")
    tab.fill(**SEVEN | values)
    tab.page.click("#create")
    control = tab.page.locator(f"#in-{field}")
    expect(control).to_have_attribute("aria-invalid", "true")
    expect(control).to_be_focused()
    (error,) = [e for e in tab.page.locator(".field .error").all_text_contents() if e]
    assert text in error
    described = tab.page.get_attribute(f"#in-{field}", "aria-describedby").split()
    assert any(error == tab.page.text_content(f"#{name}") for name in described)
    tab.expect_status("see the field that is marked")


def test_the_page_asks_for_a_key_where_one_is_needed(
    browser: Browser, page_server: Server, tmp_path: Path
) -> None:
    with serve(page_server, tmp_path, api_keys="right") as url, open_tab(browser, url) as tab:
        tab.page.goto(url)
        expect(tab.page.locator("#key")).to_be_focused()
        tab.page.fill("#key", "wrong")
        tab.page.keyboard.press("Enter")
        expect(tab.page.locator("#notice")).to_contain_text("not accepted")
        tab.page.fill("#key", "right")
        tab.page.keyboard.press("Enter")
        expect(tab.page.locator("#in-prompt")).to_be_visible()
        expect(tab.page.locator("#access")).to_be_hidden()
        expect(tab.page.locator("#notice")).to_be_hidden()
        tab.make(**SEVEN)
        assert "right" not in tab.page.text_content("#snippet")
        assert tab.page.evaluate("localStorage.length") == 0


def test_a_gateway_without_a_tritonserver_is_told_in_words(
    browser: Browser, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path / 'jobs.db'}"
    with serve_gateway("127.0.0.1:9", database=database) as url, open_tab(browser, url) as tab:
        tab.page.goto(url)
        notice = tab.page.locator("#notice")
        expect(notice).to_contain_text("no tritonserver answers")
        expect(notice).to_contain_text("Trying again")
