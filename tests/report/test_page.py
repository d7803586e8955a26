"""The page in a real browser: nothing is loaded or run, anchors land, nothing is cut off, anyone can read it."""

import itertools
import json
import shutil
from pathlib import Path

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from builders import change_row, healthy_runs, params
from playwright.sync_api import sync_playwright
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from restore_parity.params import NOTEBOOK, Params
from restore_parity.report import make_report

HOSTILE = {
    77: "<script>window.hacked = 1</script>",
    78: "</pre></section><b id=hacked>",
    79: "[link](javascript:alert(1)) # *markdown* `x`",
    80: "\x1b[31mred\x1b[2J",
    81: "\u202eright to left\u2066",
    82: "x" * 20_000,
}
SIZES = [(400, "light"), (1400, "light"), (1400, "dark")]
MANY = {"prompts_per_step": 50, "generations_per_prompt": 4, "list_lengths": [3] * 50, "closing_limit_tokens": [14] * 50}


def report(runs: Path, given: Params, notebook: Path = NOTEBOOK) -> Path:
    changed = given.model_dump(exclude_defaults=True) | {"runs": str(runs), "reuse": True}
    make_report(Params.model_validate(changed), changed, notebook)
    return runs / "report.html"


def with_cell(file: Path, source: str) -> Path:
    """The notebook with another check in the place of same-setup."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    next(cell for cell in notebook.cells if cell.id == "check-same-setup").source = source
    nbformat.write(notebook, file)
    return file


def hostile(folder: Path) -> Path:
    """A failing run whose model text, groups and files are what an attacker would have them be."""
    vocabulary = {HOSTILE.get(i, chr(i) if i > 32 else f"t{i}"): i for i in range(128)}
    (folder / "model").mkdir(parents=True)
    Tokenizer(WordLevel(vocabulary, unk_token="t0")).save(str(folder / "model" / "tokenizer.json"))
    given = params(model=str(folder / "model"))
    runs = healthy_runs(folder / "runs", given)
    for place, token in enumerate(HOSTILE, start=2):
        change_row(runs, "1/0/0", lambda row, place=place, token=token: row["token_ids"].__setitem__(-place, token))
    for text in HOSTILE.values():
        change_row(runs, "2/0/0", lambda row, text=text: row.update(group_id=row["group_id"] + text))
    return report(runs, given)


def failing(folder: Path) -> Path:
    runs = healthy_runs(folder / "runs")
    change_row(runs, "1/1/1", lambda row: row["token_ids"].__setitem__(-2, 99))
    return report(runs, params())


def large(folder: Path) -> Path:
    given = params(cut_tokens={}, **MANY)
    runs = healthy_runs(folder / "runs", given, steps=6)
    for key in ("1/3/0", "2/40/3"):
        change_row(runs, key, lambda row: row["token_ids"].__setitem__(-2, 99))
    return report(runs, given)


def stopped(source: str):
    def make(folder: Path) -> Path:
        folder.mkdir()
        return report(healthy_runs(folder / "runs"), params(), with_cell(folder / "n.ipynb", source))

    return make


PAGES = {
    "passing": lambda folder: report(healthy_runs(folder / "runs"), params()),
    "failing": failing,
    "killed": stopped("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    "left": stopped("import sys; sys.exit(0)"),
    "large": large,
    "hostile": hostile,
}


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp("pages") / name) for name, make in PAGES.items()}


@pytest.fixture(scope="session")
def browser():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "no Chromium on this machine: `make test` installs it where it may, else install the package chromium"
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def opened(files, browser):
    """Each page in each size, with what the browser said and asked for while it opened."""
    pages = {}
    for name, file in files.items():
        for width, scheme in SIZES:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.said, page.asked = [], []
            page.on("console", lambda message, page=page: page.said.append(message.text))
            page.on("pageerror", lambda error, page=page: page.said.append(str(error)))
            page.on("request", lambda request, page=page: page.asked.append(request.url))
            page.goto(file.as_uri())
            pages[name, width, scheme] = page
    return pages


def every_page(function):
    return pytest.mark.parametrize("name", PAGES)(function)


def every_size(function):
    cases = [(name, *size) for name in PAGES for size in SIZES]
    return pytest.mark.parametrize("case", cases, ids=["-".join(map(str, case)) for case in cases])(function)


@every_page
def test_nothing_is_loaded_and_nothing_runs(opened, files, name):
    page = opened[name, 1400, "light"]
    assert not page.said
    assert [url for url in page.asked if not url.startswith("data:")] == [files[name].as_uri()]
    assert page.evaluate("[document.scripts.length, typeof window.hacked, !!document.getElementById('hacked')]") == [
        0,
        "undefined",
        False,
    ]


@every_page
def test_every_link_of_the_page_lands_on_one_place(opened, name):
    ids = opened[name, 1400, "light"].evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    links = opened[name, 1400, "light"].evaluate("[...document.querySelectorAll('a')].map(e => e.getAttribute('href'))")
    assert len(ids) == len(set(ids)) and links
    assert {link for link in links if link.removeprefix("#") not in ids} == set()


@every_page
def test_every_figure_has_an_alternative_text(opened, name):
    alts = opened[name, 1400, "light"].evaluate("[...document.images].map(e => e.alt)")
    assert all(len(alt) > 20 for alt in alts) and (len(alts) >= 3 or name in ("killed", "left"))


@every_page
def test_headings_are_in_order_under_one_title(opened, name):
    levels = opened[name, 1400, "light"].evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(e => +e.tagName[1])")
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


@every_size
def test_nothing_is_cut_off(opened, case):
    page = opened[case]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    widest = page.evaluate(
        "Math.max(0, ...[...document.querySelectorAll('img, pre, h1')].map(e => e.getBoundingClientRect().right))"
    )
    assert widest <= case[1]


@every_size
def test_anyone_can_read_it(opened, case):
    found = Axe().run(opened[case]).response["violations"]
    serious = [
        (entry["id"], entry["nodes"][0]["html"][:200]) for entry in found if entry["impact"] in ("serious", "critical")
    ]
    assert not serious


@every_page
def test_a_dark_page_is_dark(opened, name):
    colour = opened[name, 1400, "dark"].evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")) < 60


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("passing", "PASS: the restored run trained on the same rows"),
        (
            "failing",
            "FAIL: the restored run's rows are not the uninterrupted run's, or not shown to be; what failed: near-tie",
        ),
        ("killed", "INCOMPLETE: the experiment did not come about"),
        ("left", "INCOMPLETE: the experiment did not come about"),
    ],
)
def test_the_first_screen_says_the_verdict(opened, name, first):
    title = opened[name, 400, "light"].locator("h1")
    assert title.inner_text().startswith(first) and title.bounding_box()["y"] < 200


def test_the_first_screen_says_what_failed_first_and_links_to_it(opened):
    header = opened["failing", 1400, "light"].locator("header")
    assert "near-tie 1/1/1#0" in header.locator("pre").inner_text()
    links = header.locator("a").evaluate_all("all => all.map(e => e.getAttribute('href'))")
    assert links == ["#check-near-tie", "#cut-1-1-1-0"]


def test_the_stopped_cell_is_named_on_the_first_screen(opened):
    assert "stopped in cell check-same-setup" in opened["killed", 1400, "light"].locator("header").inner_text()


def test_of_many_cuts_the_failed_are_drawn_singly_and_come_first(opened):
    page = opened["large", 1400, "light"]
    alts = page.evaluate("[...document.images].map(e => e.alt)")
    assert any("Token boundaries of 2 cuts; 1/3/0" in alt for alt in alts)
    rows = page.locator("#cut-table tbody tr").all_inner_texts()
    assert any(f"Prefix lengths of {len(rows)} cuts" in alt for alt in alts)
    assert len(rows) > 350 and ["broken" in row for row in rows[:3]] == [True, True, False]


def test_hostile_text_is_shown_as_text(opened):
    shown = opened["hostile", 1400, "light"].inner_text("main")
    assert "<script>window.hacked = 1</script>" in shown and "\\x1b[31mred" in shown and "\\u202eright to left" in shown
    assert "\x1b" not in shown and "\u202e" not in shown


def test_pages_are_small(files):
    sizes = {name: file.stat().st_size for name, file in files.items()}
    assert sizes["passing"] < 3e6 and max(sizes.values()) < 8e6


def test_code_is_folded_and_there(opened):
    page = opened["passing", 1400, "light"]
    assert not page.locator("#check-near-tie pre", has_text="results.require").first.is_visible()
    page.locator("#check-near-tie summary").click()
    assert page.locator("#check-near-tie pre", has_text="results.require").first.is_visible()


def test_results_are_whole_beside_a_stopped_page(files):
    told = json.loads(files["left"].with_name("results.json").read_text())
    assert told["verdict"] == "INCOMPLETE" and {check["status"] for check in told["checks"]} == {"not_run"}
