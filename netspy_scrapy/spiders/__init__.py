"""Netspy spiders."""
