"""The store in Valkey or Redis servers, by Redlock; nobody else knows of it."""
