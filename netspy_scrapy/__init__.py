"""netspy's crawling rules for Scrapy."""
