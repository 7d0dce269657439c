"""The audit page in a browser: it draws, it answers to mouse and keyboard, it asks nobody for anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.covering import covering
from tests.report import sample_record
from tests.report.browser import chromium, labels, opened, until, widths
from tests.report.typed import render
from whence.report.page.charts import HIGHEST_TITLE, axis


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Path:
    where = tmp_path_factory.mktemp("pages")
    for kind in ("images", "tabular", "bare", "hostile", "deep"):
        (where / f"{kind}.html").write_text(render(getattr(sample_record, kind)()), encoding="utf-8")
    return where


@pytest.fixture
def page(browser: Any, folder: Path) -> Iterator[Any]:
    with opened(browser, folder / "images.html") as one:
        yield one


SCREENS = [(1280, "light"), (390, "dark")]


@pytest.mark.parametrize(("kind", "screen"), covering(["images", "tabular", "bare", "hostile", "deep"], SCREENS))
def test_every_chart_draws_and_nothing_sticks_out(
    browser: Any, folder: Path, kind: str, screen: tuple[int, str]
) -> None:
    width, scheme = screen
    with opened(browser, folder / f"{kind}.html", width, 844, color_scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        until(
            page,
            """[...document.querySelectorAll('.chart')].every(one => {
                const box = one.querySelector('svg.main-svg').getBoundingClientRect();
                return box.width > 200 && box.height > 100 && one.querySelector('path, image, rect');
            })""",
        )
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.querySelectorAll('.chart').length > 5") == (kind != "bare")
        assert page.evaluate("document.documentElement.dataset.theme") == scheme


def test_clicking_a_layer_opens_it_and_its_weights_and_the_bar_leads_back(page: Any) -> None:
    assert labels(page)[0].startswith("LeNet5")
    page.locator("#icicle .slice", has_text="conv2").first.click()
    until(page, "document.getElementById('icicle')._fullData[0].level === 'n1'")
    assert labels(page)[0].startswith("conv2")
    assert page.locator("#map-layer").input_value() == "1"
    assert any(label.startswith("LeNet5") for label in labels(page, "pathbar"))
    page.select_option("#view", "ood")
    assert labels(page)[0].startswith("conv2"), "an open layer stays open in another view"
    page.locator("#icicle .pathbar", has_text="LeNet5").click()
    until(page, "document.getElementById('icicle')._fullData[0].level === 'n'")
    assert labels(page)[0].startswith("LeNet5")
    page.locator("#icicle .slice", has_text="conv1").first.click()
    until(page, "document.getElementById('icicle')._fullData[0].level === 'n0'")
    page.click("#reset")
    assert labels(page)[0].startswith("LeNet5")


def test_another_view_has_other_data_list_legend_and_words(page: Any) -> None:
    before, share = widths(page), page.locator("#tree [data-share]").first.inner_text()
    assert page.locator("[data-negative=test]").is_visible()
    page.select_option("#view", "difference")
    assert widths(page) != before
    assert page.locator("#tree [data-share]").first.inner_text() != share
    assert page.locator(".legend[data-palette=difference]").is_visible()
    assert not page.locator(".legend[data-palette=explained]").is_visible()
    assert page.locator("#view-note").inner_text().startswith("Out of distribution − test")
    page.select_option("#view", "ood")
    assert page.locator("[data-negative=ood]").is_visible() and not page.locator("[data-negative=test]").is_visible()
    page.select_option("#view", "prior")
    assert page.locator("#no-negative").is_visible()
    assert len(set(page.evaluate("document.getElementById('icicle').data[0].marker.colors"))) == 1


def test_the_keyboard_reaches_the_view_and_the_layers(page: Any) -> None:
    before = widths(page)
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "view":
            break
    assert page.evaluate("document.activeElement.id") == "view"
    page.keyboard.press("ArrowDown")
    until(page, "document.getElementById('view').value === 'ood'")
    assert widths(page) != before
    page.locator("#tree summary").nth(2).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('icicle')._fullData[0].level === 'n2'")
    assert page.locator("#map-layer").input_value() == "2"


def test_the_weight_maps_follow_their_selects(page: Any) -> None:
    def drawn() -> Any:
        return page.evaluate("document.getElementById('weights').data.map(one => one.z[0][0])")

    first = drawn()
    page.select_option("#map-what", "identified")
    assert drawn() != first
    assert page.evaluate("document.getElementById('weights').layout.coloraxis.cmax") == 1
    page.select_option("#map-layer", "3")
    assert len(drawn()) == 1
    assert page.locator("[data-map='3']").is_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_weight_maps_take_the_room_that_they_need(browser: Any, folder: Path, width: int) -> None:
    places = """(() => {
        const box = document.getElementById('weights').getBoundingClientRect();
        const drawn = [...document.querySelectorAll('#weights svg.main-svg')].map(one => one.getBoundingClientRect());
        const bar = document.querySelector('#weights .colorbar').getBoundingClientRect();
        const next = document.getElementById('inputs').getBoundingClientRect();
        return [box.height, box.bottom - bar.bottom, next.top - box.bottom, ...drawn.map(one => one.height)];
    })()"""
    with opened(browser, folder / "deep.html", width, 844) as page:
        seen = set()
        for at in [*range(len(page.query_selector_all("#map-layer option"))), 1, 0]:
            page.select_option("#map-layer", str(at))
            until(page, f"document.getElementById('weights')._fullLayout.yaxis && ({places})[1] > -2")
            box, below, gap, *heights = page.evaluate(places)
            assert heights and all(abs(height - box) <= 2 for height in heights), at
            assert 120 < box <= (600 if at > 3 or at == 0 else 900), at
            assert -2 <= below < 60 and gap > 0, "the colour scale ends inside, and little is left below it"
            seen.add(round(box))
        assert len(seen) >= 5


def test_small_layers_share_a_line_that_opens(browser: Any, folder: Path) -> None:
    def shown() -> list[str]:
        return list(page.locator("#tree [data-layer] > summary b:visible").all_inner_texts())

    with opened(browser, folder / "deep.html") as page:
        line = page.locator("#small-layers > summary")
        few = shown()
        count = int(line.inner_text().split()[0])
        assert len(few) + count == 23 and "layers with less than 0.5" in line.inner_text()
        line.focus()
        page.keyboard.press("Enter")
        until(page, "document.getElementById('small-layers').open")
        assert len(shown()) == 23
        page.select_option("#view", "input:5")
        assert set(shown()) == set(page.locator("#tree [data-layer] > summary b").all_inner_texts())
        page.select_option("#view", "test")
        line.click()
        assert shown() == few, "in the network's order, whatever was shown between"


@pytest.mark.parametrize("width", [1280, 390])
def test_names_break_at_dots_and_numbers_not_at_all(browser: Any, folder: Path, width: int) -> None:
    """Each part of a name, and each number, is in one line."""
    with opened(browser, folder / "deep.html", width, 844) as page:
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        broken = page.evaluate(
            """[...document.querySelectorAll('tbody th:has(wbr), #tree b:has(wbr), .key li:has(wbr)')].filter(
                one => [...one.childNodes].some(part => {
                    const range = document.createRange();
                    range.selectNodeContents(part);
                    return part.nodeType === 3 && part.textContent.trim() && range.getClientRects().length > 1;
                })).map(one => one.textContent)"""
        )
        assert broken == []
        tall = page.evaluate(
            """[...document.querySelectorAll('[data-share], [data-explained]')].filter(one => {
                const range = document.createRange();
                range.selectNodeContents(one);
                return range.getClientRects().length > 1 || one.scrollWidth > one.clientWidth + 1;
            }).map(one => one.textContent)"""
        )
        assert tall == []


def test_changes_of_shares_stay_on_one_line(page: Any) -> None:
    page.select_option("#view", "difference")
    wrapped = page.evaluate(
        """[...document.querySelectorAll('#tree [data-share]')].filter(one => {
            const range = document.createRange();
            range.selectNodeContents(one);
            return range.getClientRects().length > 1;
        }).length"""
    )
    assert wrapped == 0


def test_an_input_shows_its_profile(page: Any) -> None:
    page.locator("[data-view='input:48']").click()
    assert page.locator("#view").input_value() == "input:48"
    assert page.evaluate("document.activeElement.id") == "view"
    assert page.locator("#view-note").inner_text().startswith("Test input 48")


def test_the_theme_can_be_chosen_and_follows_the_system(page: Any) -> None:
    def colours() -> Any:
        return page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " document.getElementById('deferral-curve')._fullLayout.font.color]"
        )

    light = colours()
    page.click("#theme")
    page.click("#theme")
    assert page.locator("#theme").inner_text() == "Theme: dark"
    dark = colours()
    assert light[0] != dark[0] and light[1] != dark[1]
    page.click("#theme")
    assert colours() == light
    page.emulate_media(color_scheme="dark")
    until(page, "document.documentElement.dataset.theme === 'dark'")
    assert colours() == dark


def test_hostile_names_do_nothing(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "hostile.html") as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.hover("#icicle", position={"x": 60, "y": 220})
        page.wait_for_selector("#icicle .hovertext")
        assert page.evaluate("document.querySelectorAll('img[onerror], #icicle a').length") == 0
        assert "onerror=alert(1)" in page.inner_text("h1")


def test_things_to_tap_are_large_enough_on_a_phone(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "images.html", 390, 844, has_touch=True) as page:
        small = page.evaluate(
            "[...document.querySelectorAll('button, select, nav a, summary')].filter(one => one.offsetParent"
            " && one.getBoundingClientRect().height < 36).map(one => one.textContent)"
        )
        assert small == []
        assert page.evaluate("document.getElementById('icicle').data[0].tiling.orientation") == "h"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_real_audit_is_pictured(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    """Its picture is taken whole; ``WHENCE_SCREENSHOTS=FOLDER`` keeps it to look at."""
    from tests.auditing.conftest import made

    path = made("images")[1].html(tmp_path / "audit.html")
    kept = Path(os.environ.get("WHENCE_SCREENSHOTS", tmp_path)) / f"audit-{width}-{scheme}.png"
    with opened(browser, path, width, 900, color_scheme=scheme) as page:
        page.screenshot(path=kept, full_page=True)
        tall = page.evaluate("document.documentElement.scrollHeight")
    with Image.open(kept) as picture:
        assert picture.size == (width, tall)
        shades = picture.convert("L").resize((64, 256)).getcolors(64 * 256) or []
    light = sum(count for count, shade in shades if shade > 127) / (64 * 256)
    assert len(shades) > 50 and (light > 0.6) == (scheme == "light")


def test_names_above_weight_maps_keep_their_room_on_paper(browser: Any, folder: Path) -> None:
    """Where the maps are lower than on the screen: between the rows there is room for a line of text."""
    with opened(browser, folder / "images.html") as page:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        gaps = page.evaluate(
            """(() => {
                const {_size, ...layout} = document.getElementById('weights')._fullLayout;
                const ends = Object.keys(layout).filter(key => /^yaxis/.test(key)).map(key => layout[key].domain);
                const tops = [...new Set(ends.map(one => one[1]))].sort().reverse();
                const lows = [...new Set(ends.map(one => one[0]))].sort().reverse();
                return tops.slice(1).map((top, i) => (lows[i] - top) * _size.h);
            })()"""
        )
        assert gaps and min(gaps) >= 15


def test_titles_of_axes_have_lines_that_fit_half_a_page() -> None:
    lines = axis("F(true value): predicted probability of a smaller value")["title"]["text"].split("<br>")
    upward = axis("true compressive strength (MPa)", HIGHEST_TITLE)["title"]["text"].split("<br>")
    assert len(lines) == len(upward) == 2 and max(map(len, lines)) <= 44 and max(map(len, upward)) <= 27
    assert axis("confidence")["title"]["text"] == "confidence" and axis("") == {}
