"""The only place that says etcd: keys, transactions, the wire."""
