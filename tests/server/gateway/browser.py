# SPDX-License-Identifier: Apache-2.0
"""A real Chromium at the page of a gateway in front of a few entries; conftest.py hands it on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from builder.tritonserver.server import Server, start_server
from tests.server.entries import Entry, add_entry, load_all, write_entries
from tests.server.gateway.serving import serve_gateway

DEMO = Path(__file__).parents[3] / "model_repository" / "demo" / "pipeline"
DEMO_CALL = {
    **{"height": 64, "width": 64, "num_inference_steps": 20, "max_sequence_length": 32},
    **{"negative_prompt": "", "true_cfg_scale": 2.0},
}
SMALL = {"height": 32, "width": 32, "num_inference_steps": 2}
ENTRIES = {
    "repaints": Entry("stable-diffusion-inpaint", SMALL | {"strength": 1.0}),
    "varies": Entry("stable-diffusion-img2img", {"num_inference_steps": 2, "strength": 0.5}),
    "clips": Entry("wan22-t2v", SMALL | {"num_frames": 5, "max_sequence_length": 16}),
    "sounds": Entry("stable-audio-variation", {"num_inference_steps": 2}),
    "shapes": Entry("ddpm", {"num_inference_steps": 2}),
    "depths": Entry("marigold-depth"),
}
"""`shapes` takes no prompt; `depths` returns arrays, which the page cannot show."""
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
"""scripts/install_chromium puts it there; without one the tests fail."""

OPTIONS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
WAIT_MS = 60_000
DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="session")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Entries that make pictures (`demo` streams), repaint them, make videos, and sound."""
    folder = tmp_path_factory.mktemp("page-server")
    repository = write_entries(folder, ENTRIES)
    call = ("--diffusers-call-kwargs", json.dumps(DEMO_CALL))
    add_entry(repository, "demo", DEMO, *call, "--decoupled")
    with start_server(repository, log=folder / "server.log", exit_timeout_s=0) as running:
        load_all(running, ["demo", *ENTRIES])
        yield running


@pytest.fixture(scope="session")
def page_gateway(page_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(page_server, tmp_path_factory.mktemp("page-gateway")) as url:
        yield url


@contextmanager
def serve(server: Server, folder: Path, **settings: Any) -> Iterator[str]:
    """Serve a gateway whose jobs are kept in `folder`; yield its base URL."""
    files = {"database": f"sqlite:///{folder / 'jobs.db'}", "files": str(folder / "files")}
    with serve_gateway(server.grpc_url, **files, **settings) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module; playwright's event loop may not outlive it."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield launched
        launched.close()


@dataclass
class Tab:
    """A tab that has the page open, with a browser profile of its own."""

    url: str
    page: Page
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def open(self, model: str | None = None) -> None:
        self.page.goto(self.url)
        expect(self.page.locator("#in-prompt")).to_be_visible(timeout=WAIT_MS)
        if model is not None:
            self.page.select_option("#model", model)

    def fill(self, **values: object) -> None:
        for name, value in values.items():
            self.page.fill(f"#in-{name}", str(value))

    def make(self, **values: object) -> None:
        """Fill the form in, press Create, wait for the result."""
        self.fill(**values)
        self.page.click("#create")
        self.expect_status("Done in")

    def expect_status(self, text: str) -> None:
        expect(self.page.locator("#status")).to_contain_text(text, timeout=WAIT_MS)

    def result(self) -> bytes:
        """The file that is shown, as its link downloads it."""
        return self.download("#media a[download]")

    def download(self, link: str) -> bytes:
        with self.page.expect_download() as started:
            self.page.locator(link).first.click()
        return Path(started.value.path()).read_bytes()


@contextmanager
def open_tab(browser: Browser, url: str, **options: Any) -> Iterator[Tab]:
    """Open a tab; whatever the page logs as an error, or asks of another host, fails the test."""
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    context.set_default_timeout(WAIT_MS)
    tab = Tab(url, context.new_page())
    tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.page.on("console", lambda said: _note(tab, said))
    tab.page.on("request", lambda request: tab.hosts.add(request.url.partition("/v1")[0]))
    try:
        yield tab
        assert not tab.errors, tab.errors
        assert all(host.startswith((url, "blob:")) for host in tab.hosts), tab.hosts
    finally:
        context.close()


def _note(tab: Tab, said: Any) -> None:
    """Chromium itself logs each answer that is no success: those the tests are about."""
    if said.type == "error" and "Failed to load resource" not in said.text:
        tab.errors.append(said.text)


@pytest.fixture
def tab(browser: Browser, page_gateway: str) -> Iterator[Tab]:
    with open_tab(browser, page_gateway) as opened:
        yield opened
