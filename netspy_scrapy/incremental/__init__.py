"""What is known of pages from earlier runs, so that only what changed is fetched."""
