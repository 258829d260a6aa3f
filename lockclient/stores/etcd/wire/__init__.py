"""Talking to etcd: gRPC channels, failover, watch streams, messages."""
