"""The recipes of docs/structures.md, each by several threads through the sidecars at HOST and two PORTs. Prints a line "OK NAME" per
recipe. The first that counts or keeps something wrong ends the run with a traceback and exit code 1. The page shows the examples."""

import json
import sqlite3
import sys
import threading
import time

from pymemcache.client.base import Client

host, ports = sys.argv[1], [int(port) for port in sys.argv[2:4]]
WRITERS, EACH = 4, 25


def connect(port=ports[0]):
    return Client((host, port), timeout=15, default_noreply=False)


def same(got, expected):
    if got != expected:
        raise AssertionError(f"got {got!r:.200}, expected {expected!r:.200}")


def by_many(do):
    """Calls do(client, writer, n) for each n by each writer, every second one through the other sidecar. Returns the threads."""
    failed = []

    def run(writer):
        client = connect(ports[writer % 2])
        try:
            for n in range(EACH):
                do(client, writer, n)
        except Exception as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=run, args=[writer]) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    return threads, failed


def done(what, running):
    threads, failed = running
    for thread in threads:
        thread.join()
    same(failed, [])
    print("OK", what, flush=True)


client = connect()
database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE pages (id INTEGER, views INTEGER)")
database.execute("INSERT INTO pages VALUES (7, 0)")


def write_back():
    # example: write back
    views = int(client.get("hits:page:7", 0))
    if views > 0:
        database.execute("UPDATE pages SET views = views + ? WHERE id = 7", (views,))
        database.commit()
        client.decr("hits:page:7", views)
    # end


running = by_many(lambda client, writer, n: client.incr("hits:page:7", 1))
while any(thread.is_alive() for thread in running[0]):
    write_back()
write_back()
same(database.execute("SELECT views FROM pages").fetchall(), [(WRITERS * EACH,)])
same(client.get("hits:page:7"), b"0")
done("write back", running)


def append(client, writer, n):
    same(client.append("log:orders", b"%d %d\n" % (writer, n)), True)
    time.sleep(0.1)


SLOT = 1
seen = []
handle = seen.append
begin = since = int(time.time())
running = by_many(append)
last = None
while last is None or since <= last:
    # example: late log
    until = (int(time.time()) // SLOT - 2) * SLOT  # what is appended from now on is in later slots
    entries = client.get(f"log:orders@{since}-{until - 1}", b"") if until > since else None
    if entries is not None:
        for entry in entries.splitlines():
            handle(entry)
        since = until
    # end
    if last is None and not any(thread.is_alive() for thread in running[0]):
        last = int(time.time())
    time.sleep(0.05)
same(sorted(seen), sorted(b"%d %d" % (writer, n) for writer in range(WRITERS) for n in range(EACH)))
same(connect(ports[1]).get(f"log:orders@{begin}-{last}").splitlines(), seen)
done("late log", running)


def add_by_cas(client, writer, n):
    tag = f"{writer} {n}"
    # example: array by cas
    while True:
        value, cas = client.gets("array:7")
        if value is None:
            stored = client.add("array:7", json.dumps([tag]))
        else:
            stored = client.cas("array:7", json.dumps(json.loads(value) + [tag]), cas)
        if stored:
            break
    # end


def add_under_lock(client, writer, n):
    tag = f"{writer} {n}"
    # example: array under a lock
    while not client.add("lock:array:8", b"host-1", expire=30):
        time.sleep(0.01)
    try:
        array = json.loads(client.get("array:8", b"[]"))
        client.set("array:8", json.dumps(array + [tag]))
    finally:
        client.delete("lock:array:8")
    # end


expected = sorted(f"{writer} {n}" for writer in range(WRITERS) for n in range(EACH))
for what, add, key in [("array by cas", add_by_cas, "array:7"), ("array under a lock", add_under_lock, "array:8")]:
    running = by_many(add)
    done(what, running)
    same(sorted(json.loads(client.get(key))), expected)
