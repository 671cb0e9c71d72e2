"""Images in prompts: read, prepared, kept, and computed beside steps. Imports nothing by itself."""
