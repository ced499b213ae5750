"""The dialect of Anthropic: messages, and how many tokens they are."""
