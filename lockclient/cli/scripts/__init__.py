"""Commands that hold a lock for shell scripts: `run`, `lock`, `alive`, `unlock`."""
