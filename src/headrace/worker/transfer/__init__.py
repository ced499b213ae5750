"""Cache blocks from one worker's memory into another's: by shared memory, TCP or NIXL, behind one interface.

`listener.py` is where both ends begin, `connection.py` what they then share.
"""
