"""One spider in several processes of one machine: ``netspy-run --processes N``."""
