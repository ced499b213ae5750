"""The dialect of Ollama: generation, and the models that are here, loaded, or to be fetched."""
