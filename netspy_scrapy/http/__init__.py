"""netspy's request and response, on Scrapy's."""
