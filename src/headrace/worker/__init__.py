"""One process around one engine, and the messages it speaks."""
