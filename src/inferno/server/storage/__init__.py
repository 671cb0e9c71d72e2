"""What the server keeps in SQLite: the connection, and the files and batches of OpenAI's Batch
API. Responses and conversations are in `server.responses.database`."""
