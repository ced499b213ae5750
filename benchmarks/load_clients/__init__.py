"""Load clients that others wrote, each in an environment of its own, and what each says of a server."""
