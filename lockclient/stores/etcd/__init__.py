"""The store on etcd; no other folder knows its keys, transactions and wire."""
