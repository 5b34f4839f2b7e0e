"""Runs a spider in several processes, from the first to the summary."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from netspy_scrapy.exceptions import ConfigError, RedisFailedError
from netspy_scrapy.extensions.record import MARK
from netspy_scrapy.findings import NOTHING_STORED
from netspy_scrapy.processes import unfinished
from netspy_scrapy.processes.job import Job
from netspy_scrapy.processes.merge import Run, merged_lines, merged_record, stored_nothing
from netspy_scrapy.processes.output import LogOutput, PlainOutput
from netspy_scrapy.processes.server import OwnRedis
from netspy_scrapy.processes.shared_work import SharedWork
from netspy_scrapy.processes.worker import Worker
from netspy_scrapy.settings import DumpSettings, WatchSettings, user_set

if TYPE_CHECKING:
    from netspy_scrapy.processes.plan import Plan

logger = logging.getLogger(__name__)

#: Times that a process which was killed is started anew, for each number.
_RESTARTS: Final = 5
#: Seconds from a second signal to the kill.
_AT_ONCE: Final = 10.0
#: Seconds between two looks at the run's own server.
_LOOK: Final = 0.5
#: What ends a run, and how it is understood.
_SIGNALS: Final = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
}


class Supervisor:
    """Starts the processes, takes the place of none of them, and ends when all have ended.

    A process that is killed is started anew, for its share of each domain is nobody else's; its
    tasks go to the others at once. One that ends for another reason than that all is done ends
    the run: the others are stopped gently.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began = time.monotonic()
        self._server: OwnRedis | None = None
        self._work: SharedWork | None = None
        self._workers: list[Worker] = []
        self._running: dict[asyncio.Task[None], Worker] = {}
        self._signal = 0
        self._reason: str | None = None
        """Why the run was ended before all was done; None: it was not."""
        self._failed = False
        self._notes: list[str] = []
        self._log = LogOutput()
        self._out = PlainOutput()

    async def run(self) -> int:
        """Run all, log the summary, and return the exit status.

        Raises ConfigError, RedisAwayError or RedisFailedError if it cannot begin.
        """
        loop = asyncio.get_running_loop()
        for received, meant in _SIGNALS.items():
            loop.add_signal_handler(received, self._received, meant)
        try:
            await self._begin()
            for number in range(1, self._plan.count + 1):
                self._start(number)
            watch = loop.create_task(self._watch_server())
            while self._running:
                ended, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    await self._ended(task)
            watch.cancel()
            run = await self._end()
        finally:
            if self._work is not None:
                self._work.close()
            # Where something went wrong here, processes may be left: they end when the command has,
            # and the server with them.
            if self._server is not None and not self._running:
                await self._server.stop()
        self._judge(run)
        self._say(run)
        return run.exit_status

    # Beginning -----------------------------------------------------------------------------------
    async def _begin(self) -> None:
        settings = self._plan.settings.copy()
        if not self._plan.has_server:
            self._server = OwnRedis()
            await self._server.start()
            settings.setdict({"REDIS_URL": self._server.url, "REDIS_PARAMS": {}}, "cmdline")
        work = self._work = SharedWork(settings, self._plan.spider, self._plan.arguments)
        await asyncio.to_thread(work.check)
        await asyncio.to_thread(work.begin)
        logger.info(
            "%d processes share the work of %s by %s", self._plan.count, self._plan.spider.name,
            "a redis-server of their own" if self._server is not None else work.shown,
        )  # fmt: skip

    def _start(self, number: int, place: int = 0) -> None:
        if self._reason is not None:
            return
        assert self._work is not None
        server = self._server
        worker = Worker(number, place)
        reading, writing = os.pipe()
        job = Job(
            target=self._plan.target,
            arguments=self._plan.arguments,
            settings=self._plan.settings_of(
                number, self._work.run, server.url if server is not None else None
            ),
            path=list(sys.path),
            label=worker.label,
            report_fd=writing,
            hold_fd=server.hold_fd if server is not None else None,
        )
        task = asyncio.ensure_future(worker.run(job, reading, self._log, self._out))
        self._workers.append(worker)
        self._running[task] = worker

    # Ending --------------------------------------------------------------------------------------
    async def _ended(self, task: asyncio.Task[None]) -> None:
        """See what is to be done when a process has ended."""
        worker = self._running.pop(task)
        task.result()
        if worker.node is not None:
            assert self._work is not None
            self._work.base = worker.node.base  # a spider may have named itself when it was made
        if worker.reason is None and worker.node is not None:
            await self._abandon(worker)
        if self._reason is not None:
            if worker.node is None and worker.error is None:
                worker.fate = "stopped before it began"
            return
        if worker.has_died:
            self._replace(worker)
        elif worker.reason != "finished":
            self._failed = self._failed or not worker.is_well
            self._stop(
                worker.reason or "process_failed",
                f"Process {worker.label} {worker.ending()}: the others are stopped",
                logging.INFO if worker.is_well else logging.ERROR,
            )

    async def _abandon(self, worker: Worker) -> None:
        assert self._work is not None
        assert worker.node is not None
        try:
            count = await asyncio.to_thread(self._work.abandon, worker.node)
        except RedisFailedError as exc:
            logger.warning("What process %s held waits for its lease: %s", worker.label, exc)
            worker.fate = worker.ending()
            return
        worker.fate = f"{worker.ending()}; the {count} tasks that it held went back to the queue"

    def _replace(self, worker: Worker) -> None:
        fate = worker.fate or worker.ending()
        if worker.place >= _RESTARTS:
            self._failed = True
            self._stop(
                "process_failed",
                f"Process {worker.label} {fate}. It was the {_RESTARTS + 1}th with this number: "
                "the others are stopped",
            )
            return
        self._start(worker.number, worker.place + 1)
        new = self._workers[-1].label
        worker.fate = f"{fate}; {new} took its place"
        logger.error("Process %s %s", worker.label, worker.fate)

    async def _watch_server(self) -> None:
        while self._server is not None:
            await asyncio.sleep(_LOOK)
            if not self._server.is_alive:
                self._failed = True
                self._notes.append(
                    "THE REDIS SERVER of the run ended: what was queued in it, and not yet taken "
                    "by a process, is lost"
                )
                self._stop("redis_ended", "The redis-server of the run has ended: all is stopped")
                return

    def _received(self, number: int) -> None:
        name = signal.Signals(number).name
        if not self._signal:
            self._signal = number
            text = f"Received {name}: stopping. Send it again to stop at once"
            self._stop("shutdown", text, logging.INFO)
            return
        logger.info("Received %s again: stopping at once", name)
        for worker in self._running.values():
            worker.signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(_AT_ONCE, self._kill)

    def _stop(self, reason: str, message: str, level: int = logging.ERROR) -> None:
        """Have all processes stop gently, once."""
        logger.log(level, "%s", message)
        if self._reason is None:
            self._reason = reason
            for worker in self._running.values():
                worker.signal(signal.SIGTERM)

    def _kill(self) -> None:
        for worker in self._running.values():
            worker.signal(signal.SIGKILL)

    async def _end(self) -> Run:
        """Keep what is left in the queue, and return what became of the run."""
        dump = DumpSettings.from_settings(self._plan.settings)
        run = Run(
            spider=self._plan.spider.name,
            reason=self._reason or "finished",
            elapsed=time.monotonic() - self._began,
            parts=[
                one.part() for one in sorted(self._workers, key=lambda one: (one.number, one.place))
            ],
            target=self._plan.target,
            item_path=dump.item_path,
            request_path=dump.request_path,
            notes=self._notes,
        )
        assert self._work is not None
        try:
            left = await asyncio.to_thread(self._work.left)
            if not left:
                await asyncio.to_thread(self._work.end)
            elif self._server is not None:
                await asyncio.to_thread(self._dump_left, run)
            else:
                run.notes.append(
                    f"{left} requests are left in {self._work.base}: the next start goes on with "
                    "them"
                )
        except RedisFailedError as exc:
            run.notes.append(f"nobody knows what is left in the queue: {exc}")
            self._failed = True
        return run

    def _dump_left(self, run: Run) -> None:
        assert self._work is not None
        tasks = self._work.take_left()
        dump = DumpSettings.from_settings(self._plan.settings)
        if not dump.unfinished:
            run.notes.append(
                f"{len(tasks)} requests were left in the queue, and are gone "
                "(DUMP_UNFINISHED_ON_EXIT is off)"
            )
            return
        run.dumped, run.lost = unfinished.dump(
            tasks, self._plan.spider, run.spider, dump.request_path, run.reason
        )
        self._failed = self._failed or bool(run.lost)

    def _judge(self, run: Run) -> None:
        """Decide on the exit status; whether nothing was stored only the whole run can tell."""
        settings, record = self._plan.settings, merged_record(run)
        expects_rows = user_set(settings, "ITEM_PIPELINES") or record.get("items")
        if run.reason == "finished" and expects_rows and stored_nothing(record):
            run.findings[NOTHING_STORED] = record["pages"]
            run.notes.append(f"nothing was stored although {record['pages']} pages were fetched")
            fail_on = WatchSettings.from_settings(settings).fail_on
            self._failed = self._failed or NOTHING_STORED in fail_on
        failed = self._failed or not all(one.is_well for one in run.parts)
        run.exit_status = 128 + self._signal if self._signal else int(failed)

    def _say(self, run: Run) -> None:
        if WatchSettings.from_settings(self._plan.settings).summary:
            record = merged_record(run)
            logger.info("%s", "\n".join(merged_lines(run, record)))
            logger.info("%s %s", MARK, json.dumps(record))


def run(plan: Plan) -> int:
    """Run the processes of *plan*; return the exit status, and raise what keeps it from it."""
    if sys.platform == "win32":
        raise ConfigError("--processes", plan.count, "1 on this system: it has no signals to stop")
    return asyncio.run(Supervisor(plan).run())
