"""Talking to Cloud Storage: HTTP requests with retries and deadlines."""
