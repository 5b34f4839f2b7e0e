"""The keys under which this package counts, in Scrapy's stats.

A key is public. ``{...}`` parts are filled with a cause, a sink's class name or a table.
"""

from __future__ import annotations

#: Retries by cause: an HTTP status, or the name of an exception.
RETRIES = "netspy/retries"
RETRIES_BY_CAUSE = "netspy/retries/{cause}"
#: Requests that failed for good, by cause.
FAILURES = "netspy/failures"
FAILURES_BY_CAUSE = "netspy/failures/{cause}"
#: Requests given up on purpose, by cause; neither failures nor dumped.
DROPS = "netspy/drops"
DROPS_BY_CAUSE = "netspy/drops/{cause}"
#: Requests still queued when the crawl stopped, written to FAILED_REQUEST_PATH.
UNFINISHED_DUMPED = "netspy/requests/unfinished_dumped"
#: Lines written to FAILED_REQUEST_PATH (unfinished ones included).
REQUESTS_DUMPED = "netspy/requests/dumped"
#: Requests that could be neither queued nor dumped, or whose dump line could not be written.
REQUESTS_LOST = "netspy/requests/lost"
#: Requests of a job whose last run was killed, with which this run went on.
REQUESTS_RECOVERED = "netspy/requests/recovered"
#: Requests that had to wait in the scheduler.
REQUESTS_DELAYED = "netspy/requests/delayed"
#: Items that were admitted to the sinks, skipped as duplicates, or refused before any sink.
ITEMS = "netspy/items"
ITEMS_DUPLICATE = "netspy/items/duplicate"
ITEMS_REFUSED = "netspy/items/refused"
#: Batches that were stored without looking for duplicates, as the filter in Redis was down.
UNFILTERED_BATCHES = "netspy/items/unfiltered_batches"
#: Rows per sink: stored, refused (dumped for a reason of their own), dumped in all, lost.
ROWS_STORED = "netspy/rows/{sink}/stored"
ROWS_REFUSED = "netspy/rows/{sink}/refused"
ROWS_DUMPED = "netspy/rows/{sink}/dumped"
ROWS_LOST = "netspy/rows/{sink}/lost"
BATCHES = "netspy/rows/{sink}/batches"
#: Times that a sink's server was found away, and rows that may be stored twice because of it.
OUTAGES = "netspy/rows/{sink}/outages"
ROWS_IN_DOUBT = "netspy/rows/{sink}/in_doubt"
#: Fingerprints of requests that could not be written to the job directory, and of items that
#: could not be recorded in Redis.
FILTER_DEGRADED = "netspy/filter/degraded"
#: Rests of domains, and circuits that opened.
RESTS = "netspy/rests"
CIRCUITS = "netspy/circuits"
#: robots.txt files that were asked for, and those that could not be read.
ROBOTS_FETCHED = "netspy/robots/fetched"
ROBOTS_ERRORS = "netspy/robots/errors"
#: Requests that asked whether a page changed, those answered with 304, pages fetched in full.
INCREMENTAL_ASKED = "netspy/incremental/asked"
INCREMENTAL_NOT_MODIFIED = "netspy/incremental/not_modified"
INCREMENTAL_FETCHED = "netspy/incremental/fetched"
#: Pages that were sent again with the body of last time (NETSPY_INCREMENTAL_COMPARE_BODY).
INCREMENTAL_SAME_BODY = "netspy/incremental/same_body"
#: Pages without validators that were not asked for, as they are not old enough.
INCREMENTAL_FRESH = "netspy/incremental/fresh"
#: Pages whose ETag says nothing, and pages without any validator, among those fetched.
INCREMENTAL_DYNAMIC = "netspy/incremental/dynamic"
INCREMENTAL_PLAIN = "netspy/incremental/without_validators"
#: Pages that were known and are gone (404, 410).
INCREMENTAL_GONE = "netspy/incremental/gone"
#: Requests of unchanged pages that were sent again (mode "follow").
INCREMENTAL_FOLLOWED = "netspy/incremental/followed"
#: Bytes of bodies that were not sent, by their size of last time.
INCREMENTAL_SAVED = "netspy/incremental/bytes_saved"
#: What was written to the store, and what could not be.
INCREMENTAL_STORED = "netspy/incremental/stored"
INCREMENTAL_LOST = "netspy/incremental/lost"
#: Tasks of a queue in Redis: acknowledged; done here although another node had them by then; handed
#: out again after a node was lost; whose lease ran out here; given up.
QUEUE_DONE = "netspy/queue/done"
QUEUE_STALE = "netspy/queue/stale"
QUEUE_REDELIVERED = "netspy/queue/redelivered"
QUEUE_LOST = "netspy/queue/lost_leases"
QUEUE_DEAD = "netspy/queue/dead"
#: The response cache: answers that came from it, cacheable pages that were fetched, answers stored,
#: answers taken out again (a spider refused them), and entries that could not be read or written.
CACHE_HITS = "netspy/cache/hits"
CACHE_MISSES = "netspy/cache/misses"
CACHE_STORED = "netspy/cache/stored"
CACHE_DISCARDED = "netspy/cache/discarded"
CACHE_ERRORS = "netspy/cache/errors"
#: Bodies that had to wait for NETSPY_MAX_INFLIGHT_BYTES, and downloads begun once more for it.
BODIES_HELD = "netspy/bodies/held"
BODIES_AGAIN = "netspy/bodies/again"
#: What the run came to: pages and failures of one that stored no row though it has sinks, and the
#: exit status if it is 1.
NOTHING_STORED = "netspy/nothing_stored"
EXIT_STATUS = "netspy/exit_status"
