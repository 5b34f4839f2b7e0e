"""Serve the bookshop until the program is interrupted: ``python -m bookshop --port 8000``."""

from __future__ import annotations

import argparse
import signal
import threading

from bookshop.site import serve


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bookshop", description="A bookshop to crawl.")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one (0)")
    parser.add_argument("--edition", type=int, default=1, help="2 and up change some books (1)")
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with serve(options.host, options.port, edition=options.edition) as shop:
        print(f"Bookshop serving on {shop.url}", flush=True)
        # In steps, as a wait without end cannot be interrupted on every system.
        while not stop.wait(0.5):
            pass


if __name__ == "__main__":
    main()
