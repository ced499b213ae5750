"""The dialect of OpenAI: chat and text completions."""
