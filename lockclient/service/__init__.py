"""Shared parts of both services: flags, lifecycle, logging, HTTP server, request filter."""
