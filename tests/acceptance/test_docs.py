"""The README and every page of the documentation do what they say: their code runs, their links lead somewhere."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.tools.cluster import Cluster, short_folder
from tests.tools.keeper import keeper
from tests.tools.pages import (
    Block,
    PageError,
    Reader,
    blocks,
    commands,
    first_missing,
    wants_empty_database,
    wants_server,
)
from tests.tools.workers import ROOT

PAGES = sorted(path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TESTED = [path for path in PAGES if path.name != "CHANGELOG.md"]


def name(path: Path) -> str:
    """A page's path from the root."""
    return path.relative_to(ROOT).as_posix()


# ---- the pages ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the server of a page, which runs as another user, can get to its data: not below pytest's own folders."""
    folder = short_folder()
    keeper.note("folder", folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    keeper.strike("folder", folder)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", TESTED, ids=name)
def test_every_code_block_of_a_page_runs(path: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    found = list(blocks(text, name(path)))
    if all(block.title is None and block.language not in ("python", "console", "sql") for block in found):
        return  # nothing to run: no database either
    with ExitStack() as stack:
        if wants_server(text):
            reader = stack.enter_context(on_a_server_of_its_own(folder))
        else:
            database = request.getfixturevalue("empty_database" if wants_empty_database(text) else "database")
            reader = stack.enter_context(Reader(database, folder))
        for block in found:
            reader.run(block)


@contextmanager
def on_a_server_of_its_own(folder: Path) -> Iterator[Reader]:
    """Its superuser reads the page; libpq takes any host's name for that server's."""
    with Cluster() as cluster:
        cluster.execute("CREATE DATABASE shop")
        env = {"PGHOSTADDR": cluster.host, "PGPORT": str(cluster.port)}
        with Reader(cluster.url("shop"), folder, env) as reader:
            yield reader


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_link_of_a_page_leads_somewhere(path: Path) -> None:
    assert [target for target in links(path.read_text()) if not leads(path, target)] == []


def links(text: str) -> Iterator[str]:
    """The targets of a page's links, but for those to other sites and those shown in code."""
    prose = re.sub(r"`[^`\n]*`", "", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL))
    yield from (target for target in LINK.findall(prose) if not re.match(r"[a-z]+:", target))


def leads(path: Path, target: str) -> bool:
    """Whether the file is there and has that anchor."""
    file, _, anchor = unquote(target).partition("#")
    place = (path.parent / file).resolve() if file else path
    return place.exists() and (not anchor or anchor in anchors(place.read_text()))


def anchors(text: str) -> set[str]:
    """What can be linked to in a page: explicit anchors, and headings as they are commonly slugged."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


# ---- the reader itself --------------------------------------------------------------------------------------


def page(*parts: str) -> str:
    """A page of blocks: language and what follows it, a newline, the code."""
    return "\n\n".join(f"```{part}\n```" if not part.startswith("<!--") else part for part in parts)


def read(text: str, database: str, folder: Path) -> None:
    """Run a page."""
    with Reader(database, folder) as reader:
        for block in blocks(text, "page.md"):
            reader.run(block)


def test_python_blocks_share_a_namespace_and_know_the_database(database: str, tmp_path: Path) -> None:
    last = f"python\nimport os\nassert os.environ['MAGIK_DATABASE_URL'] == url == {database!r}"
    read(page("python\nimport os\nurl = os.environ['MAGIK_DATABASE_URL']", last), database, tmp_path)


def test_a_failing_python_block_is_told_with_the_line_of_the_page(database: str, tmp_path: Path) -> None:
    text = page("text\nnothing", "python\nfine = 1", "python\nx = 1\nassert x == 2")
    with pytest.raises(PageError, match=r'page\.md:10:\n(.|\n)*File "page\.md", line 11') as caught:
        read(text, database, tmp_path)
    assert text.splitlines()[10] == "assert x == 2"
    assert "AssertionError" in str(caught.value)


def test_a_block_that_ends_the_interpreter_fails(database: str, tmp_path: Path) -> None:
    with pytest.raises(PageError, match="SystemExit"):
        read(page("python\nraise SystemExit"), database, tmp_path)
    with pytest.raises(PageError, match="ended with 3"):
        read(page("python\nimport os\nos._exit(3)"), database, tmp_path)


def test_a_warning_is_an_error(database: str, tmp_path: Path) -> None:
    with pytest.raises(PageError, match="DeprecationWarning"):
        read(page("python\nimport warnings\nwarnings.warn('old', DeprecationWarning)"), database, tmp_path)


def test_files_are_written_and_can_be_imported(database: str, tmp_path: Path) -> None:
    shown = page('python title="app/jobs.py"\nanswer = 42', "python\nfrom app.jobs import answer\nassert answer == 42")
    read(shown, database, tmp_path)
    assert (tmp_path / "app" / "jobs.py").read_text() == "answer = 42\n"
    with pytest.raises(PageError, match="leaves"):
        read(page('text title="../out.txt"\n'), database, tmp_path)


def test_commands_run_in_the_page_s_folder_and_must_exit_as_told(database: str, tmp_path: Path) -> None:
    read(page("console\n$ echo kept > file\n$ cat \\\n    file\nkept\n$ false  # exits with 1"), database, tmp_path)
    with pytest.raises(PageError, match=r"page\.md:2: false\nexited with 1, not 0"):
        read(page("console\n$ false"), database, tmp_path)
    with pytest.raises(PageError, match="exited with 0, not 1"):
        read(page("console\n$ true  # exits with 1"), database, tmp_path)


def test_commands_must_print_what_is_shown(database: str, tmp_path: Path) -> None:
    read(page("console\n$ printf 'a 12 ms\\nb\\nc\\n'\na ... ms\n...\nc"), database, tmp_path)
    with pytest.raises(PageError, match="did not print 'a'"):
        read(page("console\n$ printf 'a\\nb\\n'\nb\na"), database, tmp_path)


def test_this_interpreter_comes_first(database: str, tmp_path: Path) -> None:
    import sys

    read(page(f"console\n$ python -c 'import sys; print(sys.prefix)'\n{sys.prefix}"), database, tmp_path)


def test_sql_runs_on_the_database(database: str, tmp_path: Path) -> None:
    read(page("sql\nCREATE TABLE made ();", "sql\nSELECT FROM made;"), database, tmp_path)
    with pytest.raises(PageError, match=r"page\.md:2: .*missing"):
        read(page("sql\nSELECT FROM missing;"), database, tmp_path)


def test_a_background_command_is_awaited_and_ends_with_the_page(database: str, tmp_path: Path) -> None:
    script = "trap 'echo ended > ended; exit 0' TERM; touch up; echo 'event=ready' >&2; while :; do sleep 0.05; done"
    (tmp_path / "serve").write_text(script)
    read(page("<!-- background -->", "console\n$ bash serve", "console\n$ test -e up"), database, tmp_path)
    assert (tmp_path / "ended").exists()


def test_what_comes_before_a_background_command_runs_first(database: str, tmp_path: Path) -> None:
    (tmp_path / "serve").write_text(
        "trap 'exit 0' TERM; cat told; echo 'event=ready' >&2; while :; do sleep 0.05; done"
    )
    read(page("<!-- background -->", "console\n$ touch told\n$ bash serve", "console\n$ rm told"), database, tmp_path)


def test_a_page_may_set_up_what_it_does_not_show(database: str, tmp_path: Path) -> None:
    setup = "<!-- setup\nfrom shop.jobs import answer\n-->"
    read(page("<!-- file: shop/jobs.py\nanswer = 42\n-->", setup, "python\nassert answer == 42"), database, tmp_path)
    with pytest.raises(PageError, match=r'File "page\.md", line 2'):
        read("<!-- setup\n1 / 0\n-->", database, tmp_path)


def test_a_background_command_that_ends_badly_fails_the_page(database: str, tmp_path: Path) -> None:
    (tmp_path / "serve").write_text("trap 'exit 7' TERM; echo 'event=ready' >&2; while :; do sleep 0.05; done")
    with pytest.raises(PageError, match="ended with 7"):
        read(page("<!-- background -->", "console\n$ bash serve"), database, tmp_path)


def test_only_commands_may_be_left_out_and_only_with_a_reason(database: str, tmp_path: Path) -> None:
    read(page("<!-- no-run: needs root -->", "console\n$ exit 1"), database, tmp_path)
    with pytest.raises(PageError, match="Python in the documentation runs"):
        read(page("<!-- no-run: shy -->", "python\n1 / 0"), database, tmp_path)
    with pytest.raises(PageError, match="exited with 1"):
        read(page("<!-- no-run: -->", "console\n$ exit 1"), database, tmp_path)


def test_a_mark_counts_only_right_before_its_block(database: str, tmp_path: Path) -> None:
    with pytest.raises(PageError, match="exited with 1"):
        read("<!-- no-run: needs root -->\n\nsome prose\n\n" + page("console\n$ exit 1"), database, tmp_path)


@pytest.mark.parametrize("language", ["bash", "sh", "shell", "py", "pycon"])
def test_a_block_that_nobody_would_run_is_refused(language: str) -> None:
    with pytest.raises(PageError, match="is not run"):
        list(blocks(page(f"{language}\ntrue"), "page.md"))


def test_a_block_that_is_never_closed_is_refused() -> None:
    with pytest.raises(PageError, match="never closed"):
        list(blocks("```python\n1 / 0\n", "page.md"))


def test_indented_blocks_lose_their_indent() -> None:
    (block,) = blocks("* item\n\n  ```python\n  if True:\n      x = 1\n  ```\n", "page.md")
    assert block == Block("page.md", 4, "python", "if True:\n    x = 1\n")


def test_commands_are_told_from_their_output() -> None:
    (block,) = blocks(page("console\n$ one\nout\n$ two  # exits with 3"), "page.md")
    assert list(commands(block)) == [(2, "one", 0, ["out"]), (4, "two", 3, [])]


def test_output_is_compared_in_order() -> None:
    assert first_missing(["b", "...", "a  1"], "b\nx\na 1\n") is None
    assert first_missing(["b", "a"], "a\nb\n") == "a"


def test_links_and_anchors_are_checked(tmp_path: Path) -> None:
    here, other = tmp_path / "here.md", tmp_path / "other.md"
    other.write_text('# One Thing: here\n<a id="exact"></a>\n')
    here.write_text("# Top\n")
    text = "[a](other.md) [b](other.md#one-thing-here) [c](other.md#exact) [d](#top) [e](https://x.test) `[f](no.md)`"
    assert [leads(here, target) for target in links(text)] == [True] * 4
    assert not any(leads(here, target) for target in links("[a](no.md) [b](other.md#no) [c](#no)"))
