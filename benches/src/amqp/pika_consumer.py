"""A consumer with pika: consume.py URI QUEUE MESSAGES PREFETCH each|batch|none HANDLER-MS

Prints the seconds from the first handler's start to the last one's end, and how many messages were handled, in all and
different ones.
"""

import sys
import time

import pika

AT_A_TIME = 50
LIMIT = 600

uri, queue, messages, prefetch, mode, handler = sys.argv[1:]
messages, work = int(messages), int(handler) / 1000
seen = bytearray(messages)
handled = 0
begun = took = None


def handle(channel, method, _properties, body):
    global handled, begun, took
    if begun is None:
        begun = time.perf_counter()
    if work:
        time.sleep(work)
    number = int(body[:20])
    if number < messages:
        seen[number] = 1
    handled += 1
    last = handled == messages
    if last:
        took = time.perf_counter() - begun
    if mode == "each":
        channel.basic_ack(method.delivery_tag)
    elif mode == "batch" and (last or handled % AT_A_TIME == 0):
        channel.basic_ack(method.delivery_tag, multiple=True)
    if last:
        channel.stop_consuming()


connection = pika.BlockingConnection(pika.URLParameters(uri))
connection.call_later(LIMIT, lambda: sys.exit(f"not done after {LIMIT} s"))
channel = connection.channel()
channel.basic_qos(prefetch_count=int(prefetch))
channel.basic_consume(queue, handle, auto_ack=mode == "none")
channel.start_consuming()
# A quorum queue loses acknowledgements that are still under way when the channel closes.
connection.sleep(0.5)
connection.close()
print(took, handled, sum(seen))
