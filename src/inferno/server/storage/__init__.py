"""What the server keeps in its store, by plain SQL: how the store is opened, what each owner may
take of it, which server works at what, and the files and batches of OpenAI's Batch API. Responses
and conversations are in `server.responses.database`."""
