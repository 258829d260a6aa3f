"""The store in a bucket of Google Cloud Storage; nobody else knows of it."""
