"""The report of a run: one page to look at."""
