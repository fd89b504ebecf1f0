"""Consumes a queue with pika: pika_consumer.py URI QUEUE MESSAGES PREFETCH each|batch|none HANDLER-MS

Prints the seconds from the start of the first handler to the end of the last, the number of handled messages and the
number of different ones.
"""

import sys
import time

import pika

ACK_BATCH = 50
RUN_TIMEOUT_S = 600

uri, queue, messages, prefetch, mode, handler = sys.argv[1:]
messages, work = int(messages), int(handler) / 1000
seen = bytearray(messages)
handled = 0
started_at = elapsed = None


def handle(channel, method, _properties, body):
    global handled, started_at, elapsed
    if started_at is None:
        started_at = time.perf_counter()
    if work:
        time.sleep(work)
    number = int(body[:20])
    if number < messages:
        seen[number] = 1
    handled += 1
    last = handled == messages
    if last:
        elapsed = time.perf_counter() - started_at
    if mode == "each":
        channel.basic_ack(method.delivery_tag)
    elif mode == "batch" and (last or handled % ACK_BATCH == 0):
        channel.basic_ack(method.delivery_tag, multiple=True)
    if last:
        channel.stop_consuming()


connection = pika.BlockingConnection(pika.URLParameters(uri))
connection.call_later(RUN_TIMEOUT_S, lambda: sys.exit(f"not finished after {RUN_TIMEOUT_S} s"))
channel = connection.channel()
channel.basic_qos(prefetch_count=int(prefetch))
channel.basic_consume(queue, handle, auto_ack=mode == "none")
channel.start_consuming()
# A quorum queue loses acknowledgements that are in flight when the channel closes.
connection.sleep(0.5)
connection.close()
print(elapsed, handled, sum(seen))
