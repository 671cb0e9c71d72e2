"""Logs, metrics, traces and the history of prompts."""
