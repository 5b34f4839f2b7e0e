"""Spider middlewares."""
