"""Fields of request bodies, and the support of each."""
