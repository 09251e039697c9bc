"""Every code is documented, raised by the package and met by a test; every error tells what mends it."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from magik_sa import errors
from magik_sa.errors import REMEDIES, BootError, BootRefused, DeclarationError, EnqueueError, MagikError

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / errors.DOCS
CODES = sorted(REMEDIES)


def sources(folder: str, but: Path) -> str:
    """The text of all modules of a folder, without one of them."""
    return "\n".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.py")) if path != but)


PACKAGE = sources("magik_sa", ROOT / "magik_sa" / "errors.py")
USED = set(re.findall(r'(?<=")MAGIK_\w+(?=[":])', PACKAGE))
MET = set(re.findall(r"\bMAGIK_\w+", sources("tests", Path(__file__).resolve())))


@pytest.mark.parametrize("code", CODES)
def test_a_code_is_documented_under_its_own_anchor(code: str) -> None:
    page = PAGE.read_text()
    section = re.search(
        rf'^<a id="{code.lower()}"></a>\n\n## {code}\n\n(.+?)(?=^<a id=|\Z)', page, re.MULTILINE | re.DOTALL
    )
    assert section is not None, f"{errors.DOCS} has no section for {code}"
    assert len(section[1].split()) >= 25, "say what happened, why, and what to do"


def test_nothing_else_is_documented() -> None:
    assert set(re.findall(r"^## (MAGIK_\w+)$", PAGE.read_text(), re.MULTILINE)) == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_a_code_is_used_by_the_package(code: str) -> None:
    assert code in USED


@pytest.mark.parametrize("code", CODES)
def test_a_code_is_met_by_a_test(code: str) -> None:
    assert code in MET


def raised() -> Iterator[str]:
    """The codes that the package makes errors with."""
    for node in ast.walk(ast.parse(PACKAGE)):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            first = node.args[0].value
            if ast.unparse(node.func).endswith("Error") and isinstance(first, str) and first.startswith("MAGIK_"):
                yield first


def test_no_error_has_an_unknown_code() -> None:
    assert set(raised()) <= set(CODES)
    with pytest.raises(KeyError):
        MagikError("MAGIK_NO_SUCH_CODE", "what")


def test_codes_and_remedies_have_one_form() -> None:
    for code, remedy in REMEDIES.items():
        assert re.fullmatch(r"MAGIK(_[A-Z]+)+", code)
        assert re.fullmatch(r"[A-Z].*\.", remedy), f"{code}: a remedy is a sentence"


def test_an_error_tells_what_happened_what_mends_it_and_where_to_read_on() -> None:
    error = EnqueueError("MAGIK_ARGS_INVALID", "amount: must be above 0.", field="amount")
    assert str(error) == (
        "MAGIK_ARGS_INVALID: amount: must be above 0. Correct the named argument; nothing was written."
        " (magik explain MAGIK_ARGS_INVALID)"
    )
    assert (error.code, error.field) == ("MAGIK_ARGS_INVALID", "amount")
    assert isinstance(error, MagikError)


def test_a_remedy_can_be_more_exact_than_the_code_s() -> None:
    error = BootError("MAGIK_SETTING_INVALID", "queue: empty.", remedy="Name a queue.")
    assert str(error).startswith("MAGIK_SETTING_INVALID: queue: empty. Name a queue. (")


def findings() -> list[MagikError]:
    """Two faults of one boot."""
    return [BootError("MAGIK_NO_JOBS", "No job class."), BootError("MAGIK_POLICY_UNKNOWN", "PayOut.", field="policy")]


def test_a_refused_boot_tells_every_fault_on_a_line_of_its_own() -> None:
    refused = BootRefused(findings())
    assert [line.split(":")[0] for line in str(refused).splitlines()] == ["MAGIK_NO_JOBS", "MAGIK_POLICY_UNKNOWN"]
    assert refused.code == "MAGIK_NO_JOBS"


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
@pytest.mark.parametrize(
    "error",
    [
        DeclarationError("MAGIK_DURATION_INVALID", "every=10.", field="every", remedy="Say 10s."),
        BootRefused(findings()),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_being_copied_to_another_process(error: MagikError, copied: object) -> None:
    assert callable(copied)
    again = copied(error)
    assert type(again) is type(error)
    assert (str(again), again.code, again.field) == (str(error), error.code, error.field)
