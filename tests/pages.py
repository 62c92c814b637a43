"""Open pages in a real Chromium."""

import shutil

import pytest
from waiting import HANGS

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
PATIENCE = 1000 * HANGS  # milliseconds; playwright's default is half a minute


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine: apt install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, timeout=PATIENCE)
        yield chromium
        chromium.close()


def new_page(browser, **options):
    """Open a page in a new browser context with these options."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(PATIENCE)
    return page
