"""The ``Request.meta`` keys that this package reads and writes."""

from __future__ import annotations

#: Seconds (float) that the request waits in the scheduler before it may go. Set it on a request
#: of your own to delay it; retries use it. The scheduler takes it out.
DELAY = "netspy_delay"
#: Unix time (float) before which the request may not go; what DELAY becomes in a job directory.
NOT_BEFORE = "netspy_not_before"
#: Whose retry budget ``retry_times`` counts: ``[fingerprint (hex), redirects, retries]``.
RETRY_OWNER = "netspy_retry_owner"
#: Why the answer that follows is final although its status is one to retry.
GIVEN_UP = "netspy_given_up"
#: The number of the page's receipt in this run; see netspy_scrapy.receipts.
RECEIPT = "netspy_receipt"
#: The number of the receipt of the page that yielded the request.
PARENT = "netspy_parent"
#: The task in Redis that the request came from; it stays with the node.
TASK = "netspy_task"
#: How a browser is to fetch the page: True, or a dict with ``wait_for`` (a selector), ``time``
#: (seconds) and ``script`` (JavaScript).
RENDER = "netspy_render"
#: The domain that the request counts for, as the scheduler assigned it.
DOMAIN = "netspy_domain"
#: The ``download_slot`` that the user gave the request.
OWN_SLOT = "netspy_own_slot"
#: The origin whose robots.txt this request fetches.
ROBOTS = "netspy_robots"
#: The domain whose requests wait for this robots.txt.
HOLDS = "netspy_holds"
#: Whether incremental crawling (NETSPY_INCREMENTAL) counts for the request: False, or what is done
#: with its page if that did not change: "skip", "follow", "reparse".
INCREMENTAL = "netspy_incremental"
#: The header that incremental crawling added to the request for this attempt, and what
#: ``dont_cache`` was before: ``[name, value, dont_cache]``.
VALIDATOR = "netspy_validator"
#: What the response cache does with this request: False: nothing; "refresh": it is fetched, and the
#: answer stored. Set it on a request of your own. (``dont_cache`` of Scrapy is the same as False.)
CACHE = "netspy_cache"
#: The request was handed out for the cache to answer, and goes to the site after all.
CACHE_MISSED = "netspy_cache_missed"
#: Prefixes of content types in place of ALLOWED_CONTENT_TYPES, a list; empty: all. For media
#: (requests without a callback) it is the only way to have any.
ALLOWED_CONTENT_TYPES = "netspy_allowed_content_types"
