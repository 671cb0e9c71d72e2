"""Answers to prepared requests, whole or as streams."""
