"""Every setting of this package, as the reference shows them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Setting(NamedTuple):
    """A row of the settings reference."""

    default: Any
    meaning: str
    scrapy: str | None = None
    """The setting of Scrapy's that it is paired with."""


#: Every setting of this package, with the default that netspy spiders get.
SETTINGS: dict[str, Setting] = {
    # Which answers reach the callback
    "CHECK_STATUS_CODE": Setting(True, "False: every answer reaches the callback"),
    "RETRY_STATUS_CODES": Setting(
        [429, 500, 502, 503, 504], "statuses that are fetched again", "RETRY_HTTP_CODES"
    ),
    "ACCEPT_STATUS_CODES": Setting(
        [], "statuses that reach the callback, and are never retried", "HTTPERROR_ALLOWED_CODES"
    ),
    # Retries
    "SPIDER_MAX_RETRY_TIMES": Setting(3, "retries after the first attempt", "RETRY_TIMES"),
    "SPIDER_RETRY_INTERVAL": Setting(0.0, "seconds before a retry, without backoff"),
    "RETRY_BACKOFF": Setting(
        0.0, "seconds; the n-th retry waits base x 2^(n-1) x uniform(0.5, 1); 0: no backoff"
    ),
    "RETRY_AFTER_MAX": Setting(
        60.0,
        "seconds; cap of Retry-After and of the backoff; a longer Retry-After fails at once; "
        "0: the header is not read",
    ),
    "ANTIBOT_DETECT": Setting(
        True, "a challenge page with status 200 is no page: it is fetched again, then a failure"
    ),
    "NETSPY_RETRY_CALLBACK_ERRORS": Setting(
        False, "retry a page whose callback raised (netspy spiders always do)"
    ),
    # The request filter
    "DEDUP_FILTER": Setting(
        "memory",
        'filter of requests and items: "memory" (bloom), "lite" (exact), or for items in Redis '
        '"redis" (bloom), "redis-set" (exact)',
        "DUPEFILTER_CLASS",
    ),
    "DEDUP_INITIAL_CAPACITY": Setting(1_000_000, "fingerprints the first bloom layer holds"),
    "DEDUP_ERROR_RATE": Setting(1e-6, "share of false positives of the bloom filter"),
    "DEDUP_MAX_LAYERS": Setting(4, "layers the bloom filter may grow to"),
    "DEDUP_SCOPE": Setting("auto", '"spider", "run" or "auto": how long a filter in Redis lives'),
    "RUN_ID": Setting("", "name of a run: what processes that work on it together give alike"),
    # Redis
    "REDIS_URL": Setting("redis://localhost:6379/0", "Redis server and database"),
    "REDIS_HOST": Setting(None, "the Redis server, where REDIS_URL is not set"),
    "REDIS_PORT": Setting(None, "port of REDIS_HOST"),
    "REDIS_DB": Setting(None, "database of REDIS_HOST"),
    "REDIS_USERNAME": Setting(None, "user of Redis"),
    "REDIS_PASSWORD": Setting(None, "password of Redis"),
    "REDIS_ENCODING": Setting(None, "encoding of keys in Redis; unset: UTF-8"),
    "REDIS_PARAMS": Setting({}, "further arguments of the client of Redis, as in scrapy-redis"),
    "REDIS_KEY_PREFIX": Setting("netspy", "what every key of ours in Redis begins with"),
    # Several nodes
    "GLOBAL_THROTTLE": Setting(
        False, "delays and rests of a domain are kept by all nodes together, by Redis"
    ),
    "SPIDER_TASK_LEASE": Setting(
        600.0, "seconds until a task of a node that is not heard of goes to another; 0: never"
    ),
    "COLLECTOR_TASK_COUNT": Setting(32, "tasks that a node takes at once"),
    "NETSPY_MAX_UNACKNOWLEDGED": Setting(
        40, "pages of a node that are under way or not yet stored: what a kill fetches twice"
    ),
    "NETSPY_MAX_DELIVERIES": Setting(5, "times that a task is handed out before it is given up"),
    "SPIDER_KEEP_ALIVE": Setting(False, "stay when all is done, and wait for more"),
    "NETSPY_SHARED_START": Setting(
        False, "with RedisScheduler: start() is run by one node only, as netspy's Spider has it"
    ),
    "NETSPY_PROCESS": Setting(
        "", 'which process this is, "2/3": a domain\'s concurrency is divided; set by --processes'
    ),
    "NETSPY_PROCESS_RUN": Setting(
        "", "name of the run whose processes share one item filter; set by --processes"
    ),
    # Concurrency and time
    "SPIDER_THREAD_COUNT": Setting(
        None, "upper bound of requests in flight; unset: Scrapy's default", "CONCURRENT_REQUESTS"
    ),
    "REQUEST_TIMEOUT": Setting(22.0, "seconds a download may take", "DOWNLOAD_TIMEOUT"),
    "SPIDER_MAX_RUNTIME": Setting(
        0.0, "seconds after which the crawl is closed; 0: never", "CLOSESPIDER_TIMEOUT"
    ),
    "NETSPY_STOP_TIMEOUT": Setting(
        8.0, "seconds that downloads may take after a stop before they are cut off; 0: any time"
    ),
    "WEBDRIVER": Setting({}, "how a browser fetches pages that are to be rendered"),
    "NETSPY_RENDER_PAGES": Setting(8, "pages that a browser has open at once"),
    "NETSPY_CALLBACK_THREADS": Setting(
        0, "threads in which sync callbacks run; 0: on the event loop, as ever"
    ),
    "NETSPY_BLOCK_WARNING": Setting(
        1.0, "seconds for which code may block the event loop before it is named; 0: never"
    ),
    "ROBOTS_OBEY": Setting(False, "obey robots.txt", "ROBOTSTXT_OBEY"),
    "ROBOTS_USER_AGENT": Setting("*", "the robots.txt group that counts", "ROBOTSTXT_USER_AGENT"),
    "MAX_RESPONSE_SIZE": Setting(
        32 * 1024 * 1024, "bytes of a body, opened; 0: no limit", "DOWNLOAD_MAXSIZE"
    ),
    "ALLOWED_CONTENT_TYPES": Setting([], "prefixes of the types that are received; empty: all"),
    "NETSPY_MAX_INFLIGHT_BYTES": Setting(
        0, "bytes of all bodies that are being received or opened; 0: no limit"
    ),
    "NETSPY_START_MAX_QUEUED": Setting(
        10_000,
        "queued requests above which start() and callbacks wait for the downloader; 0: never",
    ),
    "NETSPY_DOWNLOADER": Setting(
        "http11",
        'what fetches pages: "http11", "aiohttp" (Scrapy 2.19 or newer), or "auto", aiohttp where '
        "it is there",
    ),
    "USE_SESSION": Setting(False, "netspy spiders: requests share their cookies"),
    "RANDOM_USER_AGENT": Setting(True, "a browser's User-Agent on each request"),
    # How each domain is treated
    "ROBOTS_CACHE_TTL": Setting(3600.0, "seconds a robots.txt is believed; 0: for the whole run"),
    "NETSPY_ROBOTS_ON_ERROR": Setting(
        "allow", 'while robots.txt cannot be read: "allow", "disallow" (RFC 9309) or "last_good"'
    ),
    "CIRCUIT_FAILURE_THRESHOLD": Setting(
        10, "final failures in a row that open a domain's circuit; 0: never"
    ),
    "CIRCUIT_COOLDOWN": Setting(60.0, "seconds that an open circuit rests the domain"),
    "NETSPY_CIRCUIT_HALF_OPEN": Setting(
        False, "after the rest of a circuit, let one request through first"
    ),
    "NETSPY_DOMAIN_POLICIES": Setting({}, "other values for single domains; patterns allowed"),
    # Fetching only what changed
    "NETSPY_INCREMENTAL": Setting(False, "ask sites whether pages changed since the last run"),
    "NETSPY_INCREMENTAL_STORE": Setting(
        "sqlite", 'where pages are remembered: "sqlite", or "redis", which nodes share'
    ),
    "NETSPY_INCREMENTAL_PATH": Setting(
        "netspy_incremental.db", 'file of NETSPY_INCREMENTAL_STORE = "sqlite"'
    ),
    "NETSPY_INCREMENTAL_ON_304": Setting(
        "skip",
        'an unchanged page: "skip", "follow" the requests it yielded last time, or "reparse" the '
        "body that was kept",
    ),
    "NETSPY_INCREMENTAL_COMPARE_BODY": Setting(
        False, "a page sent again with the body of last time counts as unchanged"
    ),
    "NETSPY_INCREMENTAL_MIN_AGE": Setting(
        0.0, "seconds before a page without any validator is fetched again"
    ),
    "NETSPY_INCREMENTAL_DYNAMIC_AFTER": Setting(
        3, "changes of the ETag alone, in a row, after which it is no longer asked by; 0: never"
    ),
    "NETSPY_INCREMENTAL_HEADERS": Setting(
        ["Accept", "Accept-Language", "Authorization"],
        "request headers with which a page is another page",
    ),
    # The development cache
    "RESPONSE_CACHE_ENABLE": Setting(
        False, "read answers of earlier runs from disk, and store new ones", "HTTPCACHE_ENABLED"
    ),
    "RESPONSE_CACHE_PATH": Setting(".netspy_cache", "folder of the response cache"),
    "RESPONSE_CACHE_EXPIRE": Setting(3600.0, "seconds a stored answer is used; 0: for ever"),
    # Items and sinks
    "ITEM_MAX_CACHED_COUNT": Setting(5000, "rows in a batch; twice as many may be held by a sink"),
    "BUFFER_FLUSH_INTERVAL": Setting(0.1, "seconds a row waits for its batch to fill"),
    "NETSPY_BUFFER_MAX_BYTES": Setting(
        64 * 1024 * 1024, "bytes of text and binary values that a sink may hold; 0: no limit"
    ),
    "NETSPY_SINK_WAIT": Setting(
        30.0, "seconds that rows wait for a server that is away before any is dumped"
    ),
    "NETSPY_SINK_TIMEOUT": Setting(
        60.0, "seconds without an answer after which a server counts as away"
    ),
    "ITEM_DEFAULT_TABLE": Setting("items", "table of plain dicts"),
    "ITEM_FILTER_ENABLE": Setting(True, "skip items whose fingerprint was stored in this run"),
    "CSV_OUTPUT_DIR": Setting(".", "folder of CsvPipeline's files"),
    "SQLITE_PATH": Setting("items.db", "database file of SqlitePipeline"),
    "MYSQL_HOST": Setting("localhost", "server of MysqlPipeline"),
    "MYSQL_PORT": Setting(3306, "port of MYSQL_HOST"),
    "MYSQL_USER": Setting("root", "user of MysqlPipeline"),
    "MYSQL_PASSWORD": Setting("", "password of MYSQL_USER"),
    "MYSQL_DB": Setting("netspy", "database that has the tables of MysqlPipeline"),
    "MYSQL_POOL_SIZE": Setting(5, "connections of MysqlPipeline at most"),
    "MYSQL_UPDATE_ON_DUPLICATE": Setting(
        True, "a row whose key is there overwrites its fields; False: it is refused"
    ),
    "POSTGRES_HOST": Setting("localhost", "server of PostgresPipeline"),
    "POSTGRES_PORT": Setting(5432, "port of POSTGRES_HOST"),
    "POSTGRES_USER": Setting("postgres", "user of PostgresPipeline"),
    "POSTGRES_PASSWORD": Setting("", "password of POSTGRES_USER"),
    "POSTGRES_DB": Setting("netspy", "database that has the tables of PostgresPipeline"),
    "POSTGRES_POOL_SIZE": Setting(5, "connections of PostgresPipeline at most"),
    "POSTGRES_ON_CONFLICT": Setting(
        "nothing", 'a row whose key is there: "nothing", "update" or "error"'
    ),
    "POSTGRES_CONFLICT_TARGET": Setting(
        [], 'columns of the unique index that POSTGRES_ON_CONFLICT = "update" goes by'
    ),
    "MONGO_URI": Setting("mongodb://localhost:27017", "server of MongoPipeline"),
    "MONGO_DB": Setting("netspy", "database of MongoPipeline"),
    "NETSPY_MONGO_UPSERT": Setting(
        False, "MongoPipeline: an Item replaces what has the same __unique_key__"
    ),
    "ELASTICSEARCH_HOSTS": Setting(
        ["http://localhost:9200"], "URLs of the nodes for ElasticsearchPipeline"
    ),
    "NETSPY_ELASTICSEARCH_UPSERT": Setting(
        False, "ElasticsearchPipeline: an Item replaces what has the same __unique_key__"
    ),
    "NETSPY_ELASTICSEARCH_OPTIONS": Setting({}, "arguments of the client of Elasticsearch"),
    "KAFKA_BOOTSTRAP_SERVERS": Setting(["localhost:9092"], "brokers for KafkaPipeline"),
    "NETSPY_KAFKA_KEY": Setting([], "fields that are the key of a message"),
    "NETSPY_KAFKA_OPTIONS": Setting({}, "properties of librdkafka: security, compression"),
    "FAILED_ITEM_PATH": Setting("failed_items.jsonl", "file of the rows that could not be stored"),
    "FAILED_REQUEST_PATH": Setting(
        "failed_requests.jsonl", "file of the requests that failed for good"
    ),
    "RETRY_FAILED_ON_START": Setting(
        False, "fetch the spider's requests of FAILED_REQUEST_PATH before all others"
    ),
    "DUMP_UNFINISHED_ON_EXIT": Setting(
        True, "write the requests still queued at a stop to FAILED_REQUEST_PATH (not with JOBDIR)"
    ),
    # What a crawl tells of itself
    "RUN_SUMMARY_ENABLE": Setting(True, "print the run summary"),
    "NETSPY_REPORT": Setting(
        "", "file of a page about the run, written at its end; %(name)s, %(time)s; empty: none"
    ),
    "NETSPY_FAIL_ON": Setting(
        ["nothing_stored"], "findings of the summary that make the exit status 1"
    ),
    "NETSPY_PROGRESS": Setting(True, "show a line of what goes on, where stderr is a terminal"),
    "NETSPY_PROMETHEUS_PORT": Setting(0, "port on which Prometheus finds metrics; 0: none"),
    "NETSPY_PROMETHEUS_HOST": Setting("127.0.0.1", "address of that port"),
}

#: netspy's settings that nothing here reads yet: named when a user sets them.
UNSUPPORTED: frozenset[str] = frozenset(
    {
        "DEDUP_TO_MD5", "DEDUP_WARN_FILL_RATE", "DOWNLOADER_ASYNC",
        "DOWNLOADER_ASYNC_CONCURRENCY", "DOWNLOADER_IMPERSONATE",
        "HTTPX_HTTP2", "METRICS_ENABLE", "METRICS_LOG_INTERVAL", "METRICS_PROMETHEUS_PORT",
        "PROXY_API", "PROXY_ENABLE", "PROXY_EXTRACT_API", "PROXY_POOL",
        "WARNING_DINGTALK_WEBHOOK", "WARNING_ENABLE",
        "WARNING_FEISHU_WEBHOOK", "WARNING_WECHAT_WEBHOOK",
    }
)  # fmt: skip
