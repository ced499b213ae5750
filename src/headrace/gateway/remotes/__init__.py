"""Asking models that are served elsewhere, through the OpenAI or the Anthropic API."""
