"""Which replica: starting workers, watching them, restarting them."""
