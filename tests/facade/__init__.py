"""Tests of netspy's request and response."""
