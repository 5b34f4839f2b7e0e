from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from netspy_scrapy.dumps.files import DumpFile
from netspy_scrapy.exceptions import DumpError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills, modes: run it on Unix")


@pytest.fixture
def dump(tmp_path):
    return DumpFile(tmp_path / "failed.jsonl")


def line(n, **more):
    return json.dumps({"n": n, **more})


def numbers(path):
    return [json.loads(one)["n"] for one in Path(path).read_text().splitlines()]


def mode(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def run(script, *args, **popen):
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, *map(str, args)], text=True, **popen
    )


PRELUDE = """
import json, os, sys, time
from netspy_scrapy.dumps.files import DumpFile
"""


# Appending -------------------------------------------------------------------------------------
def test_append_creates_folders_and_private_files(tmp_path, caplog):
    """Folders are made, and lines (they may hold cookies) are the owner's only, from the start."""
    before = os.umask(0)
    try:
        dump = DumpFile(tmp_path / "a" / "b" / "failed.jsonl")
        dump.append([line(1), line(2, text="é\u2028")])
        dump.append([])
    finally:
        os.umask(before)

    assert dump.path.read_bytes() == b'{"n": 1}\n{"n": 2, "text": "\\u00e9\\u2028"}\n'
    assert mode(dump.path) == mode(f"{dump.path}.lock") == 0o600
    assert not caplog.records  # it was never open to others, not even for a moment


def test_looser_mode_is_tightened(dump, caplog):
    """A file that others can read is closed to them, and that is said once."""
    dump.path.touch()
    dump.path.chmod(0o664)
    dump.append([line(1)])
    dump.path.chmod(0o640)
    dump.append([line(2)])

    assert mode(dump.path) == 0o600
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "now only its owner can" in caplog.text


def test_other_modes_stay(dump, caplog):
    """A mode that shows nothing to others is the user's own affair."""
    dump.path.touch()
    dump.path.chmod(0o700)
    dump.append([line(1)])

    assert mode(dump.path) == 0o700
    assert not caplog.records


def test_half_line_stays_alone(dump):
    """What a killed writer left half written does not swallow the next line."""
    dump.path.write_text('{"n": 1}\n{"n": 2, "te')
    dump.append([line(3)])

    assert dump.path.read_text() == '{"n": 1}\n{"n": 2, "te\n{"n": 3}\n'


def test_renamed_file_is_not_written_to(dump, tmp_path):
    """After a rename (a replay, a person) lines go to a new file at the old place."""
    dump.append([line(1)])
    dump.path.rename(tmp_path / "moved")
    dump.append([line(2)])

    assert (numbers(dump.path), numbers(tmp_path / "moved")) == ([2], [1])


def test_link_and_file_share_one_lock(dump, tmp_path):
    """Whoever appends through a symbolic link uses the same file and lock."""
    link = tmp_path / "link.jsonl"
    link.symlink_to(dump.path)
    linked = DumpFile(link)
    linked.append([line(1)])
    with dump.claim() as claimed:
        linked.append([line(2)])

        assert [one for _, one in claimed.lines()] == [line(1)]
    assert names(tmp_path) == ["failed.jsonl", "failed.jsonl.lock", "link.jsonl"]
    assert link.is_symlink()


def test_threads_never_mix_lines(dump):
    """Threads may append through one object, or through several."""
    others = [dump, DumpFile(dump.path)]
    threads = [
        threading.Thread(
            target=lambda k=k: [
                others[k % 2].append([line(k * 1000 + n, pad="x" * 5000)] * 2) for n in range(50)
            ]
        )
        for k in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = numbers(dump.path)

    assert len(found) == 800
    assert set(Counter(found).values()) == {2}
    assert found[::2] == found[1::2]


def test_unwritable_lines_are_refused(dump):
    """A line that would be two lines, or is no text, is an error and writes nothing."""
    with pytest.raises(DumpError, match="a line with a newline in it"):
        dump.append([line(1), "{\n}"])
    with pytest.raises(DumpError, match="UTF-8"):
        dump.append([line(1), "\ud800"])

    assert not dump.path.exists()


FULL = """
import resource
from netspy_scrapy.exceptions import DumpError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
dump = DumpFile(sys.argv[1])
try:
    dump.append(['{"n": 2}', json.dumps({"n": 3, "pad": "x" * 8000})])
except DumpError as exc:
    print(exc, "|", type(exc.__cause__).__name__)
dump.append(['{"n": 4}'])
"""


@pytest.mark.parametrize("before", ['{"n": 1}\n', '{"n": 1}'])
def test_full_disk_leaves_no_half_line(dump, before):
    """If the disk fills up half way, the file is as it was before, and the error names it."""
    dump.path.write_text(before)
    dump.path.chmod(0o600)
    output, _ = run(FULL, dump.path, stdout=subprocess.PIPE).communicate()

    assert output == f"{dump.path} cannot be written: File too large | OSError\n"
    assert numbers(dump.path) == [1, 4]


def test_check_writable_leaves_nothing_behind(tmp_path):
    """A file that can be written, in folders yet to be made, is none the more there."""
    dump = DumpFile(tmp_path / "a" / "b" / "failed.jsonl")

    assert dump.check_writable() is None
    assert names(tmp_path) == []
    dump.append([line(1)])
    assert dump.check_writable() is None
    assert numbers(dump.path) == [1]


def test_check_writable_says_why_not(tmp_path):
    """A path that cannot be written is named with the reason."""
    (tmp_path / "file").write_text("")
    below_file = DumpFile(tmp_path / "file" / "failed.jsonl")
    folder = DumpFile(tmp_path)
    nowhere = DumpFile("/proc/nowhere/failed.jsonl")

    assert below_file.check_writable() == f"{below_file.path} cannot be written: Not a directory"
    assert folder.check_writable() == f"{tmp_path} is not a regular file"
    assert nowhere.check_writable().startswith("/proc/nowhere/failed.jsonl cannot be written: ")
    with pytest.raises(DumpError, match="cannot be written"):
        below_file.append([line(1)])
    with pytest.raises(DumpError, match="cannot be written"):
        folder.append([line(1)])


def test_file_of_somebody_else(tmp_path):
    """A file that only another user may write is found out at the start."""
    if os.getuid() == 0:
        script = """
os.setuid(65534)
dump = DumpFile(sys.argv[1])
print(dump.check_writable())
print(DumpFile(sys.argv[2]).check_writable())
"""
        tmp_path.chmod(0o755)
        for parent in tmp_path.parents[:2]:
            parent.chmod(0o755)
        path = tmp_path / "failed.jsonl"
        DumpFile(path).append([line(1)])
        new = tmp_path / "new.jsonl"
        output, _ = run(script, path, new, stdout=subprocess.PIPE).communicate()

        assert output.splitlines() == [
            f"{path} cannot be written: Permission denied",
            f"{new} cannot be written: Permission denied",
        ]
    else:
        tmp_path.chmod(0o500)

        assert "Permission denied" in DumpFile(tmp_path / "failed.jsonl").check_writable()
        tmp_path.chmod(0o700)


# Taking over -----------------------------------------------------------------------------------
def test_nothing_to_claim(dump, tmp_path):
    """Without lines there is nothing to take over, and no file appears."""
    assert dump.claim() is None
    assert names(tmp_path) == []
    dump.path.touch()
    assert dump.claim() is None


def test_finished_lines_go(dump, tmp_path):
    """When every line is finished, nothing is left but the lock."""
    dump.append([line(1), line(2)])
    with dump.claim() as claimed:
        found = list(claimed.lines())
        claimed.done(number for number, _ in found)

        assert claimed.remaining() == 0
    assert [one for _, one in found] == [line(1), line(2)]
    assert names(tmp_path) == ["failed.jsonl.lock"]


def test_unfinished_lines_come_back_as_they_were(dump, tmp_path):
    """Lines that are put back, or not mentioned, keep every byte; new lines stay where they are."""
    strange = '{"n":2,  "extra": [1.0, 1e2], "é": "\\u00e9"}'
    dump.append([line(1), strange, line(3), line(4)])
    claimed = dump.claim()
    dump.append([line(5)])
    one, two, three, _ = claimed.lines()
    claimed.done([one[0]])

    assert claimed.put_back([(three[0], line(33)), two]) == 2
    assert claimed.remaining() == 1
    assert claimed.close() == 1
    assert claimed.close() == 0
    assert dump.path.read_text().splitlines() == [line(5), line(33), strange, line(4)]
    assert mode(dump.path) == 0o600
    assert names(tmp_path) == ["failed.jsonl", "failed.jsonl.lock"]


def test_exception_puts_everything_unfinished_back(dump, tmp_path):
    """A replay that ends in an exception loses no line and keeps what is finished finished."""
    dump.append([line(n) for n in range(5)])

    def replay():
        with dump.claim() as claimed:
            for number, one in claimed.lines():
                if one == line(2):
                    raise KeyboardInterrupt
                claimed.done([number])

    with pytest.raises(KeyboardInterrupt):
        replay()
    assert numbers(dump.path) == [2, 3, 4]
    assert names(tmp_path) == ["failed.jsonl", "failed.jsonl.lock"]


def test_lines_stay_claimable_if_they_cannot_go_back(dump, tmp_path, caplog):
    """If the file cannot be written, the claimed lines wait for the next replay."""
    dump.append([line(n) for n in range(3)])

    def replay():
        with dump.claim() as claimed:
            claimed.done([next(claimed.lines())[0]])
            dump.path.mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay()
    logged = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    with pytest.raises(DumpError, match="Is a directory"):
        dump.claim().close()
    dump.path.rmdir()
    with dump.claim() as again:
        found = [json.loads(one)["n"] for _, one in again.lines()]

    assert len(logged) == 1
    assert "Is a directory" in logged[0]
    assert ".replaying-" in logged[0]
    assert found == [1, 2]
    assert numbers(dump.path) == [1, 2]


def test_released_lines_go_on_where_they_stopped(dump):
    """A claim that was let go is taken over with what was finished, before newer lines."""
    dump.append([line(n) for n in range(4)])
    first = dump.claim()
    first.done(number for number, one in first.lines() if one in (line(0), line(2)))
    first.release()
    dump.append([line(4)])
    second = dump.claim()
    found = list(second.lines())

    assert [json.loads(one)["n"] for _, one in found] == [1, 3, 4]
    second.done([found[1][0], found[2][0]])
    assert second.close() == 1
    assert numbers(dump.path) == [1]
    with pytest.raises(DumpError, match="not held by this replay"):
        first.done([0])


def test_older_claims_come_first(dump, tmp_path):
    """What several killed replays left is taken over in the order in which it was claimed."""
    (tmp_path / "failed.jsonl.replaying-9-20").write_text(line(2))
    (tmp_path / "failed.jsonl.replaying-10-3").write_text(line(1))
    (tmp_path / "failed.jsonl.replaying-10-3.mine").write_text(line(0))
    dump.append([line(3)])
    with dump.claim() as claimed:
        found = [one for _, one in claimed.lines()]

    assert found == [line(1), line(2), line(3)]
    assert numbers(dump.path) == [1, 2, 3]
    assert (tmp_path / "failed.jsonl.replaying-10-3.mine").exists()


def test_living_replay_keeps_its_lines(dump):
    """While a replay lives, in this process or another, its lines are not taken from it."""
    dump.append([line(1)])
    first = dump.claim()

    assert dump.claim() is None
    other = run("print(DumpFile(sys.argv[1]).claim())", dump.path, stdout=subprocess.PIPE)
    assert other.communicate()[0] == "None\n"
    dump.append([line(2)])
    with DumpFile(dump.path).claim() as second:
        assert [one for _, one in second.lines()] == [line(2)]
    first.close()
    assert numbers(dump.path) == [2, 1]


def test_unknown_numbers_are_errors(dump):
    """Marking a line that was never handed out is an error, and changes nothing."""
    dump.append([line(1)])
    with dump.claim() as claimed:
        for wrong in (-1, 1):
            with pytest.raises(DumpError, match=f"line {wrong} is not held"):
                claimed.done([0, wrong])
            with pytest.raises(DumpError, match="not held"):
                claimed.put_back([(wrong, line(1))])

        assert claimed.remaining() == 1
    assert numbers(dump.path) == [1]


def test_half_lines_are_set_aside(dump, tmp_path, caplog):
    """Broken lines are kept byte by byte in a file of their own; the others are replayed."""
    broken = [b'{"n": 2, "te', b"[1]", b"42", b'{"n": "\xff"}', b"\0\0\0", b"}"]
    dump.append([line(1)])
    with dump.path.open("ab") as file:
        file.write(b"\n".join(broken) + b"\n\n  \n" + b'\xef\xbb\xbf{"n": 3}\r\n{"n": 4}')
    with dump.claim() as claimed:
        found = list(claimed.lines())
        claimed.set_aside(*found.pop())
        claimed.done(number for number, _ in found)

    assert [json.loads(one.lstrip("\ufeff"))["n"] for _, one in found] == [1, 3]
    assert claimed.broken == len(broken) + 1
    aside = tmp_path / "failed.jsonl.broken"
    assert aside.read_bytes().splitlines() == [*broken, b'{"n": 4}']
    assert mode(aside) == 0o600
    assert names(tmp_path) == ["failed.jsonl.broken", "failed.jsonl.lock"]
    assert "line 2 is not a JSON object" in caplog.text
    assert "7 lines were set aside" in caplog.text


def test_writer_without_lock_loses_nothing(dump):
    """A line that another program writes into the file after it was taken over comes back."""
    dump.append([line(1)])
    with dump.path.open("a") as foreign:
        claimed = dump.claim()
        claimed.done(number for number, _ in claimed.lines())
        foreign.write(line(2) + "\n")
    claimed.close()

    assert numbers(dump.path) == [2]


def test_damaged_journal_finishes_nothing_wrong(dump, tmp_path):
    """A note that was half written when the process was killed is not taken for another one."""
    dump.append([line(n) for n in range(200)])
    claimed = dump.claim()
    claimed.done([0, 1, 2, 5])
    claimed.release()
    (journal,) = tmp_path.glob("*.done")
    noted = journal.read_bytes()
    with journal.open("ab") as file:
        file.write(b"12-14")
    again = dump.claim()
    again.done([199])
    again.release()
    (tmp_path / "failed.jsonl.replaying-1-1.done").write_bytes(b"0-3;\n")
    with dump.claim() as last:
        found = [json.loads(one)["n"] for _, one in last.lines()]

    assert noted == b"0-2;\n5-5;\n"
    assert mode(dump.path) == 0o600
    assert found == [n for n in range(200) if n not in (0, 1, 2, 5, 199)]
    assert names(tmp_path) == ["failed.jsonl", "failed.jsonl.lock"]


def test_lines_are_streamed(dump):
    """100,000 lines are read, finished and put back in a few megabytes."""
    total = 100_000
    for start in range(0, total, 10_000):
        dump.append([line(n, pad="x" * 200) for n in range(start, start + 10_000)])
    tracemalloc.start()
    try:
        count = 0
        with dump.claim() as claimed:
            batch = []
            for number, one in claimed.lines():
                count += 1
                batch.append((number, one))
                if len(batch) == 500:
                    if number < total // 2:
                        claimed.done(n for n, _ in batch)
                    elif number % 1000 < 500:
                        claimed.put_back(batch)
                    batch.clear()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert count == total
    assert peak < 4_000_000 < dump.path.stat().st_size
    assert sorted(numbers(dump.path)) == list(range(total // 2, total))


# Several processes -----------------------------------------------------------------------------
APPENDER = """
dump = DumpFile(sys.argv[1])
name = sys.argv[2]
for n in range(300):
    dump.append([json.dumps({"n": f"{name}{n}.{k}"}) for k in range(3)])
"""
REPLAYER = """
import random
random.seed(int(sys.argv[2]))
dump = DumpFile(sys.argv[1])
while not os.path.exists(sys.argv[3]):
    claimed = dump.claim()
    if claimed is None:
        time.sleep(0.001)
        continue
    with claimed:
        for number, line in claimed.lines():
            what = random.random()
            if what < 0.3:
                print(json.loads(line)["n"])
                claimed.done([number])
            elif what < 0.6:
                claimed.put_back([(number, line)])
"""


@pytest.mark.timed
def test_appending_and_replaying_at_once(dump, tmp_path):
    """Two crawlers append while two replays take lines out: none is lost, none doubled."""
    stop = tmp_path / "stop"
    replayers = [run(REPLAYER, dump.path, seed, stop, stdout=subprocess.PIPE) for seed in (1, 2)]
    outputs: list[str] = []
    readers = [
        threading.Thread(target=lambda one=one: outputs.append(one.communicate()[0]))
        for one in replayers
    ]
    for reader in readers:
        reader.start()
    appenders = [run(APPENDER, dump.path, name) for name in "ab"]

    assert [process.wait(30) for process in appenders] == [0, 0]
    stop.touch()
    assert [process.wait(30) for process in replayers] == [0, 0]
    for reader in readers:
        reader.join()
    replayed = [one for output in outputs for one in output.split()]
    left = numbers(dump.path) if dump.path.exists() else []
    expected = {f"{name}{n}.{k}" for name in "ab" for n in range(300) for k in range(3)}
    assert Counter([*replayed, *left]) == Counter(expected)
    assert replayed
    assert not list(tmp_path.glob("*.replaying-*"))


VICTIM = """
dump = DumpFile(sys.argv[1])
with dump.claim() as claimed, open(sys.argv[2], "a", buffering=1) as effects:
    batch = []
    for number, line in claimed.lines():
        batch.append((number, line))
        if len(batch) == 10:
            for _, line in batch[:5]:
                print(json.loads(line)["n"], file=effects)
            claimed.done([number for number, _ in batch[:5]])
            claimed.put_back(batch[5:])
            batch = []
            time.sleep(0.001)
"""


def test_killed_replay_loses_nothing(dump, tmp_path):
    """After a SIGKILL the next replay goes on; at most the batch under way is done twice."""
    effects = tmp_path / "effects"
    effects.touch()
    total = 6000
    dump.append([line(n) for n in range(total)])
    kills = 3
    for _ in range(kills):
        victim = run(VICTIM, dump.path, effects)
        seen = effects.stat().st_size
        while effects.stat().st_size < seen + 1000 and victim.poll() is None:
            time.sleep(0.001)
        assert victim.poll() is None
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    done = effects.read_text().split("\n")
    with dump.claim() as claimed:
        left = [json.loads(one)["n"] for _, one in claimed.lines()]
    counts = Counter([*(int(one) for one in done if one), *left])

    assert set(counts) == set(range(total))
    assert 0 < len(done) < total
    assert sum(counts.values()) - total <= 10 * kills
    assert Counter(numbers(dump.path)) == Counter(left)


VICTIM_AT = """
import signal
from pathlib import Path
from netspy_scrapy.dumps.locks import SharedPath

def kill_at(owner, name, call, when):
    real = getattr(owner, name)
    calls = []
    def wrapped(*args, **kwargs):
        calls.append(1)
        if len(calls) == call and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if len(calls) == call and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, wrapped)

owner = {"append": SharedPath, "rename": Path, "unlink": Path}[sys.argv[2]]
kill_at(owner, sys.argv[2], int(sys.argv[3]), sys.argv[4])
claimed = DumpFile(sys.argv[1]).claim()
if sys.argv[5] == "put_back":
    claimed.put_back(claimed.lines())
claimed.close()
"""


def test_kill_at_any_step_loses_nothing(dump, tmp_path):
    """A replay killed before or after any of its steps on disk loses no line.

    Only the chunk of 1,000 whose note was not written yet is there twice.
    """
    total = 3500
    dump.append([line(n) for n in range(total)])
    for what, call, when, how, doubled in [
        ("rename", 1, "after", "close", 0),
        ("append", 1, "before", "close", 0),
        ("append", 2, "before", "close", 1000),  # written, but not noted
        ("append", 3, "before", "close", 0),  # one chunk done
        ("append", 4, "after", "close", 0),  # two more, noted
        ("append", 2, "before", "put_back", 1000),
        ("append", 1, "before", "put_back", 0),
        ("unlink", 1, "before", "close", 0),
        ("unlink", 1, "after", "close", 0),  # the journal is left alone
    ]:
        victim = run(VICTIM_AT, dump.path, what, call, when, how)
        assert victim.wait() == -signal.SIGKILL
        total += doubled
        claimed = dump.claim()
        counts = Counter(json.loads(one)["n"] for _, one in claimed.lines())
        claimed.release()

        assert counts.keys() == set(range(3500)), (what, call, when, how)
        assert sum(counts.values()) == total
    with dump.claim() as claimed:
        claimed.done(number for number, _ in claimed.lines())
    assert names(tmp_path) == ["failed.jsonl.lock"]
