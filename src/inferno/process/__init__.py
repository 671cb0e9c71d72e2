"""The engine in a separate process: client, worker, and their protocol.

Importing the client loads no torch. Importing this package loads nothing: the worker begins with
torch, and what launches it has as little before it.
"""
