"""The pictures of docs/start.md and of the front page, from the audit of Start: ``python -m tools.start_pictures``.

Needs Chromium and Playwright.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from whence.report.browser import find_browser

DOCS = Path(__file__).parent.parent / "docs"
PARTS = {"verdict": (0, 1570), "profile": (358, 632), "deferral": (0, 694)}  # section: from where, how many pixels


def main() -> None:
    """Run the code of the page, and take a picture of three sections."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / "start.md").read_text(), flags=re.S))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile(code, "start.md", "exec"), {"__name__": "__page__"})
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
            page.goto((Path(folder) / "audit.html").as_uri())
            page.wait_for_timeout(1500)
            for name, (start, height) in PARTS.items():
                section = page.locator(f"section#{name}")
                section.scroll_into_view_if_needed()
                box = section.bounding_box()
                assert box, f"the audit has no section {name}"
                top = box["y"] + page.evaluate("window.scrollY")
                clip = {"x": box["x"] - 16, "y": top + start, "width": box["width"] + 32, "height": height}
                page.screenshot(path=DOCS / "images" / f"start-{name}.png", clip=clip, full_page=True)
            page.evaluate("window.scrollTo(0, 0)")
            page.add_style_tag(content="#quality, #conformal, #deferral { display: none }")
            page.wait_for_timeout(500)
            clip = {"x": 0, "y": 0, "width": 1200, "height": 2560}
            page.screenshot(path=DOCS / "images" / "audit.png", clip=clip, full_page=True)


if __name__ == "__main__":
    main()
