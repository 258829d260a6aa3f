"""Talking to etcd: gRPC channels, failover, watch streams, messages."""

import os
from importlib import import_module

# gRPC reads this once, as it is imported, and else logs at level INFO: a line on stderr for each
# fork of a program that uses asyncio. Errors are still logged, and child processes inherit nothing.
if "GRPC_VERBOSITY" not in os.environ:
    os.environ["GRPC_VERBOSITY"] = "ERROR"
    try:
        import_module("grpc")
    finally:
        del os.environ["GRPC_VERBOSITY"]
