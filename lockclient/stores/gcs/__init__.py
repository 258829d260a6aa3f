"""The store in a bucket of Google Cloud Storage."""
