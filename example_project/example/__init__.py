"""A Scrapy project that crawls the bookshop with netspy_scrapy switched on."""
