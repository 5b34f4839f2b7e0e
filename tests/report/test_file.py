"""Where the report goes: checked at the start, written whole."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.report.file import ReportFile


def report_file(value: Any, name: str = "books") -> ReportFile:
    file = ReportFile.from_settings(Settings({"NETSPY_REPORT": value}), name)
    assert file is not None
    return file


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


@pytest.mark.parametrize("value", ["", None])
def test_off(value: Any) -> None:
    """An empty setting means no report."""
    assert ReportFile.from_settings(Settings({"NETSPY_REPORT": value}), "books") is None


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("report.html", r"report\.html"),
        (Path("report.html"), r"report\.html"),
        ("out/%(name)s/%(time)s.html", r"out/books/\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\+00-00\.html"),
        ("100%%.html", r"100%\.html"),
    ],
)
def test_placeholders(folder: Path, value: Any, path: str) -> None:
    """%(name)s and %(time)s are filled in as in the paths of Scrapy's feeds."""
    found = report_file(value).path.relative_to(folder.resolve())

    assert re.fullmatch(path, str(found))
    assert names(folder) == []


@pytest.mark.parametrize("name", ["../../etc/x", "a/b", "c:\\d", "nul\0"])
def test_a_name_leads_into_no_other_folder(folder: Path, name: str) -> None:
    """A spider's name is part of the file's name, whatever is in it."""
    assert report_file("%(name)s.html", name).path.parent == folder.resolve()


@pytest.mark.parametrize("value", ["%(spider)s.html", "100%.html", "%s.html", "%(name)d", 7, ["a"]])
def test_not_a_path(value: Any) -> None:
    """Any other placeholder is an error that names the setting, the value and what is allowed."""
    with pytest.raises(
        ConfigError, match=r"NETSPY_REPORT = .* cannot be used: expected a path, wi"
    ):
        report_file(value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("there", "not a regular file"),
        ("file/report.html", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("/dev/null", "not a regular file"),
        ("nul\0.html", "null"),
    ],
)
def test_where_nothing_can_be_written(folder: Path, value: str, why: str) -> None:
    """A path that cannot be written is an error that names setting, value and reason."""
    (folder / "there").mkdir()
    (folder / "file").touch()
    with pytest.raises(ConfigError) as caught:
        report_file(value)

    assert caught.value.setting == "NETSPY_REPORT"
    assert caught.value.value == value
    assert why in str(caught.value)
    assert names(folder) == ["file", "there"]


def test_a_folder_that_may_not_be_written(folder: Path) -> None:
    """A folder without the right to write is named; for root there is none."""
    (folder / "closed").mkdir(mode=0o500)
    if os.access(folder / "closed", os.W_OK):
        pytest.skip("root may write everywhere; run the tests as another user")
    with pytest.raises(ConfigError, match="Permission denied"):
        report_file("closed/report.html")


def test_it_is_written_whole(folder: Path) -> None:
    """The old report is there until the new one is complete; nothing else stays, a link stays."""
    (folder / "real").mkdir()
    (folder / "real/old.html").write_text("old")
    (folder / "link.html").symlink_to("real/old.html")
    file = report_file("link.html")
    with (folder / "link.html").open() as held:
        file.write("new \u00e9")

        assert held.read() == "old"
    assert (folder / "link.html").is_symlink()
    assert (folder / "real/old.html").read_text(encoding="utf-8") == "new \u00e9"
    assert names(folder / "real") == ["old.html"]


def test_folders_are_made(folder: Path) -> None:
    """Missing folders are made when the report is written, not before."""
    file = report_file("a/b/report.html")

    assert not (folder / "a").exists()
    file.write("x")
    assert (folder / "a/b/report.html").read_text() == "x"


def test_a_failed_write_leaves_the_old_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up costs the new report, not the old one."""
    (folder / "report.html").write_text("old")
    file = report_file("report.html")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        file.write("new")

    assert (folder / "report.html").read_text() == "old"
    assert names(folder) == ["report.html"]
