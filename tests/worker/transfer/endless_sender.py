"""Run as a program: connects to the address of its argument and sends blocks for ever."""

import sys

from headrace.worker.transfer.listener import connect

connection = connect(sys.argv[1], secret=b"of both ends")
blocks = [memoryview(bytearray(1 << 20))] * 64
while True:
    connection.send(b"more", blocks)
