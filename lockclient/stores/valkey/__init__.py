"""The store in Valkey or Redis servers, by Redlock. Only the registry imports it."""
