"""A web page and a JSON API that show every lock, who holds it, and the code that took it."""
