"""`headrace bench serve`: puts load on an OpenAI-compatible server and measures what its clients see."""
