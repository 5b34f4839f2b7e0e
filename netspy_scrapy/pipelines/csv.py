"""A sink that writes one CSV file per table."""

from __future__ import annotations

import csv
import io
import os
import re
import stat
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from netspy_scrapy.dumps.locks import SharedPath
from netspy_scrapy.exceptions import PipelineError
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.pipelines.sql import (
    Adapter,
    sound_groups,
    text_of_bytes,
    union_of_columns,
)
from netspy_scrapy.settings import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from netspy_scrapy.pipelines.sql import Refused
    from netspy_scrapy.spiders.logger import SpiderLogger

_BOM = b"\xef\xbb\xbf"
_MAX_HEADER = 4 * 1024 * 1024
_CHUNK = 1024 * 1024

# File systems take names of 255 bytes, and ".csv.torn" and the like are added to these.
_MAX_NAME_BYTES = 180
_NOT_IN_NAMES = re.compile(r"[^\w\-. ]|^[. ]|[. ]$")
# Devices on Windows, whatever follows the first dot.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]) *(?:\..*)?", re.IGNORECASE)


class CsvPipeline(BasePipeline):
    r"""Writes the rows of each table to ``<CSV_OUTPUT_DIR>/<table>.csv``.

    UTF-8, with a header, quoted as RFC 4180 has it. A new file's header is the union of the
    fields of its first batch. An existing file is appended to: it keeps its header (also its byte
    order mark and its line ends), rows are written in the header's order, and a field that a row
    lacks is an empty cell. Fields that the header does not know are added at its end: the file is
    copied to a new one with the longer header, in which the older rows have empty cells, and
    replaced. (So a spider whose fields are never the same should put them into one dict.)

    Values: None is empty; text, numbers and True/False as Python writes them; dates and times in
    ISO format; Decimals without exponent; bytes as the text that they encode, or as base64 if
    they are no UTF-8; an Enum as its value; lists, dicts, sets and items as JSON. A lone surrogate
    is written out (``\udc80``). A value of any other type refuses its row.

    A table whose name cannot be a file name on every system (``../x``, ``a;drop``, 300
    characters) is written to a cleaned name with a hash, such as ``a_drop~b0965b8b.csv``, so that
    no two tables share a file. (``News`` and ``news`` do where the file system ignores case.)

    Several processes may write the same file; ``<table>.csv.lock`` keeps their batches apart. A
    batch that cannot be written leaves the file as it was. What does not end with a newline was
    left half written by a killed process: it is moved to ``<table>.csv.torn``, with a warning,
    before the next row is written. (To find it the file is read once per run.)

    Settings: CSV_OUTPUT_DIR, and those of every sink. UpdateItems are refused.
    """

    supports_update = False

    _folder: Path
    _files: dict[str, _CsvFile]

    def open(self) -> None:
        """Make the folder."""
        setting = read_text(self.settings, "CSV_OUTPUT_DIR")
        # The working folder may change while the crawl runs.
        self._folder = Path(setting).absolute()
        self._files = {}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise PipelineError(
                f"CSV_OUTPUT_DIR = {setting!r} cannot be made: {exc.strerror or exc}"
            ) from exc

    def save_items(self, table: str, items: list[dict[str, Any]]) -> Refused:
        """Append rows to the table's file; raises if none could be written."""
        rows, refused = _ADAPTER.rows(items)
        groups = sound_groups(rows, refused)
        if groups:
            refused |= self._file_of(table).append(rows, union_of_columns(groups))
        return refused

    def _file_of(self, table: str) -> _CsvFile:
        file = self._files.get(table)
        if file is None:
            path = self._folder / f"{file_name_of(table)}.csv"
            file = self._files[table] = _CsvFile(path, self.logger)
        return file


def file_name_of(table: str) -> str:
    """Return a file name, without suffix, that no other table gets.

    >>> file_name_of("news"), file_name_of("新闻 2")
    ('news', '新闻 2')
    >>> file_name_of("../x"), file_name_of("CON")
    ('_._x~d42ff05c', '_CON~c1e04579')
    """
    name = _NOT_IN_NAMES.sub("_", table)
    if not name or _DEVICES.fullmatch(name):
        name = f"_{name}"
    name = name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
    if name == table:
        return name
    # A tilde is in no clean name, so a cleaned one never meets another table's.
    digest = blake2b(table.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{name}~{digest}"


# Values ----------------------------------------------------------------------------------------
def _text_of_buffer(value: Any) -> str:
    return text_of_bytes(bytes(value))


_ADAPTER = Adapter(
    {type(None), str, int, float, bool},
    dict.fromkeys((bytes, bytearray, memoryview), _text_of_buffer),
)


class _Lines(list[str]):
    """What csv.writer writes to: one entry per record."""

    write = list.append


def _lines_of(records: Iterable[Iterable[Any]], line_end: str) -> list[str]:
    lines = _Lines()
    # A writer that ends lines with \n alone would not quote a \r.
    csv.writer(lines, lineterminator="\r\n").writerows(records)
    return lines if line_end == "\r\n" else [line[:-2] + line_end for line in lines]


# The file --------------------------------------------------------------------------------------
class _CsvFile:
    """One file; it is opened anew for each batch, so it may be moved or replaced in between."""

    def __init__(self, path: Path, logger: SpiderLogger) -> None:
        self._shared = SharedPath(path)
        self._path = self._shared.path
        self._logger = logger
        self._columns: list[str] = []
        """Of the header; empty: there is no file yet."""
        self._header = b""
        self._line_end = "\r\n"
        self._end = 0
        """Where the last record ends, as far as the file is known."""
        self._known: tuple[int, ...] = ()
        """What the file looked like when it was known up to there."""

    def append(self, rows: Mapping[int, Mapping[str, Any]], columns: Iterable[str]) -> Refused:
        """Write *rows* at the end of the file, or leave it as it was and raise."""
        try:
            with self._shared.locked():
                self._look()
                known = set(self._columns)
                new = [name for name in columns if name not in known]
                if new:
                    self._replace([*self._columns, *new])
                lines, refused = self._lines(rows)
                self._write("".join(lines).encode("utf-8", "backslashreplace"))
                return refused
        except OSError as exc:
            raise PipelineError(f"{self._path} cannot be written: {exc.strerror or exc}") from exc

    def _lines(self, rows: Mapping[int, Mapping[str, Any]]) -> tuple[list[str], Refused]:
        columns = self._columns
        try:
            return _lines_of([map(row.get, columns) for row in rows.values()], self._line_end), {}
        except (ValueError, csv.Error):
            pass  # an integer with more digits than Python writes
        lines: list[str] = []
        refused = {}
        for position, row in rows.items():
            try:
                lines += _lines_of([map(row.get, columns)], self._line_end)
            except (ValueError, csv.Error) as exc:
                refused[position] = str(exc)
        return lines, refused

    def _write(self, data: bytes) -> None:
        with self._path.open("r+b", buffering=0) as file:
            file.seek(self._end)
            try:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
            except BaseException:
                file.truncate(self._end)
                raise
            self._end += len(data)
            self._known = _looks_of(os.fstat(file.fileno()))

    # What others did to it ----------------------------------------------------------------------
    def _look(self) -> None:
        """Get to know what is new in the file, and set aside what is torn."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            status = None
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise PipelineError(f"{self._path} is not a regular file")
        if status is None or not status.st_size:
            self._columns, self._header, self._line_end = [], b"", "\r\n"
            return
        if self._known == _looks_of(status):
            return
        with self._path.open("r+b") as file:
            if not self._is_continued(file, status):
                self._read_header(file)
            end = _end_of_records(file, self._end)
            if end < status.st_size:
                self._set_aside(file, end, status.st_size - end)
            self._end = end
            self._known = _looks_of(os.fstat(file.fileno()))

    def _is_continued(self, file: IO[bytes], status: os.stat_result) -> bool:
        """Tell whether the file is what we know, with nothing but more behind it."""
        if self._known[:2] != _looks_of(status)[:2] or status.st_size < self._end:
            return False
        file.seek(self._end - 1)
        ends_there = file.read(1) == b"\n"
        file.seek(0)
        return ends_there and file.read(len(self._header)) == self._header

    def _read_header(self, file: IO[bytes]) -> None:
        file.seek(0)
        header = b""
        quoted = False
        while not header or quoted:
            line = file.readline(_MAX_HEADER)
            quoted = _ends_quoted(line if header else line.removeprefix(_BOM), quoted=quoted)
            header += line
            if quoted and (not line or len(header) > _MAX_HEADER):
                raise PipelineError(f"the header of {self._path} has a quote that does not end")
        has_end = header.endswith(b"\n")
        if not has_end and file.read(1):
            raise PipelineError(f"the first line of {self._path} is too long to be a header")
        columns = self._parse(header.removeprefix(_BOM))
        if not has_end:
            # Made by hand: ours appear with their header complete.
            header += b"\r\n"
            file.write(b"\r\n")
            file.flush()
        self._header = header
        self._line_end = "\r\n" if header.endswith(b"\r\n") else "\n"
        self._columns = columns
        self._end = len(header)

    def _parse(self, header: bytes) -> list[str]:
        try:
            records = list(csv.reader(io.StringIO(header.decode(), newline="")))
        except UnicodeDecodeError as exc:
            raise PipelineError(f"the header of {self._path} is not UTF-8") from exc
        except csv.Error as exc:
            raise PipelineError(f"the header of {self._path} cannot be read: {exc}") from exc
        if len(records) != 1 or not records[0]:
            raise PipelineError(f"the first line of {self._path} is not a header")
        return records[0]

    def _set_aside(self, file: IO[bytes], start: int, size: int) -> None:
        torn = self._shared.beside(".torn")
        with torn.open("ab") as aside:
            file.seek(start)
            while piece := file.read(_CHUNK):
                aside.write(piece)
            aside.write(b"\n")
        file.truncate(start)
        self._logger.warning(
            "%s did not end with a complete row (its writer was killed?): %d bytes are now in %s",
            self._path, size, torn,
        )  # fmt: skip

    # A longer header ----------------------------------------------------------------------------
    def _replace(self, columns: list[str]) -> None:
        """Put a copy with the header *columns* into the file's place; or the first one."""
        line = _lines_of([columns], self._line_end)[0]
        header = (_BOM if self._header.startswith(_BOM) else b"") + line.encode()
        temporary = self._shared.beside(".tmp")
        added = len(columns) - len(self._columns)
        try:
            with temporary.open("wb") as copy:
                copy.write(header)
                if self._path.exists():
                    with self._path.open("rb") as old:
                        temporary.chmod(stat.S_IMODE(os.fstat(old.fileno()).st_mode))
                        old.seek(len(self._header))
                        _copy_records(old, copy, b"," * added)
                copy.flush()
                os.fsync(copy.fileno())
                end = copy.tell()
                known = _looks_of(os.fstat(copy.fileno()))
            temporary.replace(self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if self._columns:
            self._logger.info(
                "%s has %d more columns: %s", self._path, added,
                ", ".join(map(repr, columns[-added:][:20])),
            )  # fmt: skip
        self._columns, self._header, self._end, self._known = columns, header, end, known


def _looks_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _end_of_records(file: IO[bytes], start: int) -> int:
    """Return where the last complete record ends; at *start* one begins."""
    file.seek(start)
    end = start
    quoted = False
    for line in file:
        start += len(line)
        if quoted or b'"' in line:
            quoted = _ends_quoted(line, quoted=quoted)
        if not quoted and line.endswith(b"\n"):
            end = start
    return end


def _copy_records(old: IO[bytes], new: IO[bytes], cells: bytes) -> None:
    """Copy the records, with *cells* at the end of each."""
    quoted = False
    inside = False
    for line in old:
        if quoted or b'"' in line:
            quoted = _ends_quoted(line, quoted=quoted)
        body = line.rstrip(b"\r\n")
        if quoted or not (body or inside):  # readers skip an empty line: it is no record
            new.write(line)
        else:
            new.write(body + cells + line[len(body) :])
        inside = quoted


def _ends_quoted(line: bytes, *, quoted: bool) -> bool:
    """Tell whether a quoted field goes on behind *line*, by the rules of Python's reader.

    A quote that is not the first character of its field is a character like others; so a file
    made elsewhere, with ``5" disk`` in it, is read as it was meant.
    """
    at = 0
    while True:
        if not quoted:
            if line[at : at + 1] != b'"':
                at = line.find(b",", at) + 1
                if not at:
                    return False
                continue
            quoted = True
            at += 1
        at = line.find(b'"', at) + 1
        if not at:
            return True
        if line[at : at + 1] == b'"':
            at += 1
            continue
        quoted = False
        # Behind a closing quote everything up to the comma belongs to the field.
        at = line.find(b",", at) + 1
        if not at:
            return False
