"""Which part of a domain's concurrency is a process's own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha1

_TEXT = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})")


@dataclass(frozen=True)
class Share:
    """One process of several that divide what one would have.

    Each gets the same part of a domain's concurrency. What cannot be divided goes to those whose
    turn it is for that domain, so the parts of all add up to the whole; where there are fewer
    places than processes, some have none.
    """

    number: int = 1
    """Of the process, from 1."""
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        """Return the share that ``number/count`` names; raises ValueError."""
        match = _TEXT.fullmatch(text)
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError(text)
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, domain: str, whole: int) -> int:
        """Return how many of *whole* places of *domain* are this process's; may be 0.

        ``redis/scripts/pop.lua`` reckons the same.
        """
        if self.count == 1:
            return whole
        each, rest = divmod(whole, self.count)
        return each + (self._turn(domain) < rest)

    def _turn(self, domain: str) -> int:
        digest = sha1(domain.encode(), usedforsecurity=False).hexdigest()  # as Redis has it
        return (int(digest[:8], 16) + self.number) % self.count
