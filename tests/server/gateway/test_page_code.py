# SPDX-License-Identifier: Apache-2.0
"""The page's curl and Python, run in a shell and by Python: they make the file that is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser

from builder.tritonserver.server import Server
from tests.server.gateway.browser import Tab, open_tab, serve
from tests.server.gateway.test_page import painting

AWKWARD = """it's "quoted" \\ $HOME `id` ünïcode 🎨; @a=<b>, 100 %"""
NAMES = {"demo": "picture", "repaints": "picture", "clips": "video", "sounds": "sound"}
LANGUAGES = ["curl", "python"]

pytestmark = pytest.mark.timeout(300)


def run(tab: Tab, language: str, folder: Path, **environment: str) -> None:
    """Run the page's code in `folder`, with the files that it names."""
    for link in tab.page.locator("#input-files a").all():
        with tab.page.expect_download() as started:
            link.click()
        started.value.save_as(folder / (link.get_attribute("download") or ""))
    tab.page.click(f"#show-{language}")
    code = tab.page.text_content("#snippet") or ""
    command = ["sh", "-euc", code] if language == "curl" else [sys.executable, "-c", code]
    ran = subprocess.run(
        command, cwd=folder, env=os.environ | environment, timeout=120, capture_output=True
    )
    assert ran.returncode == 0, f"{code}\n{ran.stderr.decode()}"


def made(folder: Path, name: str) -> bytes:
    """The one file whose name begins so."""
    (file,) = [file for file in folder.glob(f"{name}*") if file.name != "picture.jpg"]
    return file.read_bytes()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("model", "values"),
    [
        ("demo", {}),
        ("demo", {"width": 48, "height": 64, "guidance_scale": 2.5, "sigmas": "1, 0.5"}),
        ("demo", {"extra": '{"joint_attention_kwargs": {"scale": 1, "on": true, "no": null}}'}),
        ("clips", {"num_frames": 9, "fps": 8}),
        ("sounds", {"negative_prompt": "it's noise"}),
    ],
)
def test_code_makes_what_is_shown(
    tab: Tab, tmp_path: Path, language: str, model: str, values: dict[str, object]
) -> None:
    tab.open(model)
    tab.page.click("#more summary")
    tab.make(prompt=AWKWARD, **values)
    run(tab, language, tmp_path)
    assert made(tmp_path, NAMES[model]) == tab.result()


@pytest.mark.parametrize("language", LANGUAGES)
def test_code_with_a_picture_and_a_mask(tab: Tab, tmp_path: Path, language: str) -> None:
    folder = tmp_path / "it's here"
    folder.mkdir()
    picture = painting(tmp_path / 'a "b", c;d.png')
    tab.open("repaints")
    tab.page.set_input_files("#in-image", picture)
    tab.page.focus("canvas")
    tab.page.keyboard.press("Space")
    tab.make(prompt=AWKWARD)
    run(tab, language, folder)
    assert made(folder, "picture") == tab.result()


@pytest.mark.parametrize("language", LANGUAGES)
def test_code_with_two_files_of_one_name(tab: Tab, tmp_path: Path, language: str) -> None:
    mask = Image.new("L", (96, 64))
    mask.paste(255, (0, 0, 48, 64))
    (tmp_path / "mask").mkdir()
    mask.save(tmp_path / "mask" / "one.png")
    (tmp_path / "run").mkdir()
    tab.open("repaints")
    tab.page.set_input_files("#in-image", painting(tmp_path / "one.png"))
    tab.page.click("text=Upload a mask instead")
    tab.page.set_input_files("#in-mask_image", tmp_path / "mask" / "one.png")
    tab.make(prompt=AWKWARD, seed=7)
    run(tab, language, tmp_path / "run")
    assert made(tmp_path / "run", "picture") == tab.result()
    assert len({file.read_bytes() for file in (tmp_path / "run").glob("*one.png")}) == 2


@pytest.mark.parametrize("language", LANGUAGES)
def test_code_in_another_format(tab: Tab, tmp_path: Path, language: str) -> None:
    tab.open("demo")
    tab.page.click("#more summary")
    tab.page.select_option("#in-file_format", "webp")
    tab.make(prompt="a handwritten seven", output_compression=60)
    run(tab, language, tmp_path)
    file = made(tmp_path, "picture")
    assert file == tab.result()
    assert file[8:12] == b"WEBP"


@pytest.mark.parametrize("language", LANGUAGES)
def test_code_with_a_key_takes_it_from_the_environment(
    browser: Browser, page_server: Server, tmp_path: Path, language: str
) -> None:
    folder = tmp_path / "jobs"
    with serve(page_server, folder, api_keys="right") as url, open_tab(browser, url) as tab:
        tab.page.goto(url)
        tab.page.fill("#key", "right")
        tab.page.keyboard.press("Enter")
        tab.page.select_option("#model", "demo")
        tab.make(prompt="a handwritten seven")
        run(tab, language, tmp_path, GATEWAY_API_KEY="right")
        assert made(tmp_path, "picture") == tab.result()


def test_copy(browser: Browser, page_gateway: str) -> None:
    allowed = ["clipboard-read", "clipboard-write"]
    with open_tab(browser, page_gateway, permissions=allowed) as tab:
        tab.open("demo")
        tab.fill(prompt="a handwritten seven")
        tab.page.click("#show-python")
        tab.page.click("#copy")
        copied = tab.page.evaluate("navigator.clipboard.readText()")
        assert copied == tab.page.text_content("#snippet")
        assert 'prompt="a handwritten seven"' in copied
        assert tab.page.text_content("#copied") == "Copied."
