"""OpenAI's POST /v1/responses, without a memory: what a client does not send again is not known."""
