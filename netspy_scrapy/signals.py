"""The signals that this package sends, beside Scrapy's own.

``domain_rested(domain, seconds, cause)``: a domain begins to rest, or rests longer.
``circuit_opened(domain, failures, seconds)``: so many failures in a row opened a circuit.
"""

from __future__ import annotations

domain_rested = object()
circuit_opened = object()
