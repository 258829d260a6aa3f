"""Pages, JSON API, exports, metrics, and the one write: force-unlock."""
