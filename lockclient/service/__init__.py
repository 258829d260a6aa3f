"""What both services share: flags, lifecycle, logging, HTTP server, request filter."""
