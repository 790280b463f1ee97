"""A store of their own for the tests of reports, and one browser for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import report_sample
from caisson_runner.report.html_page import report, write
from report_browser import Browser, browser, chromium


@pytest.fixture(autouse=True, scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAISSON_HOME", str(home))
        yield home


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with browser() as made:
        yield made


def made(root: Path, target: Path) -> Path:
    """The report of a bundle or suite, written."""
    write(target, report(root)[0])
    return target


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    return made(report_sample.hostile(folder / "b").root, folder / "r.html")


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    folder = tmp_path_factory.mktemp("story")
    bundle = report_sample.bundle_sample.bundle(folder / "b", signer=report_sample.SIGNER)
    return made(bundle.root, folder / "r.html")


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    return made(report_sample.suite(folder / "s"), folder / "r.html")


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    folder = tmp_path_factory.mktemp("large")
    return made(report_sample.large(folder / "b", 100_000).root, folder / "r.html")
