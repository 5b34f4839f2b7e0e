"""The spiders that ``scrapy crawl`` finds."""
