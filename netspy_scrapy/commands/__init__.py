"""Commands of the package: console scripts, and the same as ``scrapy`` commands."""
