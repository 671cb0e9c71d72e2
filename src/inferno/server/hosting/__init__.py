"""The models of a server: loaded on demand, described, unloaded."""
