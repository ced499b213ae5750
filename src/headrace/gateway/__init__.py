"""The front door: HTTP, checks and limits, the OpenAI dialect, metrics."""
