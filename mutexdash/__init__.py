"""A web page and a JSON API that show every lock, who holds it, and the code that took it."""

from mutexdash.app import create_app

__all__ = ["create_app"]
