#!/usr/bin/env python3
"""Writes keys.txt and placements.txt: where libmemcached and twemproxy put keys.

Run: python3 make_placements.py   (needs memcached, nutcracker and pylibmc; takes some seconds)

Nothing here computes a placement. Real memcached servers are started on addresses of the loopback network, every key is
set through libmemcached (by pylibmc) or through a running twemproxy, and then each server is asked directly which
keys it holds. The addresses matter, because ketama hashes them; 127.77.0.0/16 avoids conflicts.

Made with memcached 1.6.18, twemproxy 0.5.0 and pylibmc 1.6.3 (whose libmemcached reports 1.0.16) on x86-64.
"""

import os
import re
import socket
import subprocess
import tempfile
import time

import pylibmc

HERE = os.path.dirname(os.path.abspath(__file__))
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

KEYS = [f"blog:{n % 40}:page:{n}" for n in range(880)]
# Exactly on a point, when these are the servers: the first word of the same MD5.
KEYS += [f"127.77.0.{n % 5 + 1}-{n}" for n in range(20)]
KEYS += [f"{n}" for n in range(40)]
KEYS += [f"grüße:{n}:日本" for n in range(40)]  # bytes above 127: FNV adds them as signed chars
KEYS += [chr(97 + n) * (231 + n) for n in range(20)]

SAME_PORT = [f"127.77.0.{n}:11211" for n in range(1, 26)]
SAME_HOST = [f"127.77.0.1:{n}" for n in range(11211, 11219)]
MIXED = ["127.77.0.1:11211", "127.77.0.2:11311", "127.77.0.3:11211", "127.77.0.4:22122",
         "127.77.0.5:11211", "127.77.0.1:11212", "127.77.0.6:11210", "127.77.0.2:11211"]
V6 = ["[::1]:27211", "[::1]:27212", "[::1]:27213"]
UNIX = ["unix:/tmp/kennel-golden-a", "unix:/tmp/kennel-golden-b", "unix:/tmp/kennel-golden-c"]


def spec(servers, weights=None, names=None):
    """[(address, weight, name or '')]"""
    weights = weights or [1] * len(servers)
    names = names or [""] * len(servers)
    return list(zip(servers, weights, names, strict=True))


POOLS = {
    "one": spec(SAME_PORT[:1]),
    "two-unequal": spec(SAME_PORT[:2], [1, 100]),
    "three": spec(SAME_PORT[:3]),
    "three-mixed": spec(MIXED[:3]),
    "three-weighted": spec(MIXED[:3], [1, 2, 3]),
    "seven": spec(SAME_PORT[:7]),
    "eight": spec(SAME_PORT[:8]),
    # In 32-bit floats a 25th is a little less than that, which costs every server four points.
    "twenty-five": spec(SAME_PORT),
    "eight-ports": spec(SAME_HOST),
    "eight-mixed": spec(MIXED),
    "eight-weighted": spec(MIXED, [1, 2, 3, 5, 8, 13, 21, 34]),
    "eight-equally-heavy": spec(MIXED, [7] * 8),
}
NAMED = {
    "one-named": spec(SAME_PORT[:1], names=["only"]),
    "three-named": spec(MIXED[:3], names=["a", "b", "c"]),
    "three-named-and-weighted": spec(MIXED[:3], [3, 1, 2], ["cache-1", "cache-2", "cache-3"]),
    "eight-partly-named": spec(MIXED, [1, 1, 2, 2, 3, 3, 4, 4], ["x", "", "y", "", "z", "", "10.0.0.9:11311", ""]),
}
# In and out of the order of their names.
LISTED = {pool: POOLS[pool] for pool in ("three", "eight", "eight-mixed")}
LISTED |= {f"{pool}-descending": POOLS[pool][::-1] for pool in ("three", "eight")}
# libmemcached looks "::1" up and may not find it; twemproxy's source has another idea of a Unix socket: "path:".
V6_POOL = {"three-v6": spec(V6)}
UNIX_POOL = {"three-unix": spec(UNIX)}


def cases():
    for pool, servers in (POOLS | UNIX_POOL).items():
        yield "libmemcached", "ketama", "md5", pool, servers
    # libmemcached's modula knows no weights, and takes the servers as they are given; twemproxy's, which is modula_sorted here,
    # sorts them by the length of the name first.
    for hash in ("md5", "crc32", "fnv1a_32"):
        for pool, servers in LISTED.items():
            yield "libmemcached", "modula", hash, pool, servers
    for pool, servers in (POOLS | NAMED | V6_POOL).items():
        yield "twemproxy", "ketama", "md5", pool, servers
    for hash in ("crc32", "crc32a", "fnv1a_32"):
        yield "twemproxy", "ketama", hash, "eight-weighted", POOLS["eight-weighted"]
    for hash in ("md5", "crc32", "crc32a", "fnv1a_32"):
        for pool in ("one", "three", "three-weighted", "eight-mixed", "eight-weighted"):
            yield "twemproxy", "modula_sorted", hash, pool, POOLS[pool]
    for pool in ("three-named-and-weighted", "eight-partly-named"):
        yield "twemproxy", "modula_sorted", "crc32a", pool, NAMED[pool]


def connect(address):
    if address.startswith("unix:"):
        s = socket.socket(socket.AF_UNIX)
        s.connect(address[5:])
        return s
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host.strip("[]"), int(port)), timeout=5)


def wait_for(address):
    for _ in range(200):
        try:
            return connect(address).close()
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"{address} does not answer")


def start_memcached(address):
    if address.startswith("unix:"):
        where = ["-s", address[5:]]
    else:
        host, port = address.rsplit(":", 1)
        where = ["-l", host.strip("[]"), "-p", port]
    server = subprocess.Popen(["memcached", "-u", "root", "-m", "8", "-t", "1", "-U", "0", *where])
    wait_for(address)
    if server.poll() is not None:
        raise SystemExit(f"{address} is taken")
    return server


def holds(address, value):
    """Which keys the server at `address` holds with this value."""
    with connect(address) as s, s.makefile("rb") as replies:
        s.sendall(b"".join(b"get %s\r\n" % key.encode() for key in KEYS))
        held = set()
        for key in KEYS:
            while (line := replies.readline()) != b"END\r\n":
                assert line.startswith(b"VALUE " + key.encode()), line
                if replies.readline() == value.encode() + b"\r\n":
                    held.add(key)
        return held


def set_through_libmemcached(distribution, hash, servers, value):
    def server(address, weight):
        return address[5:] if address.startswith("unix:") else f"{address}:{weight}"

    client = pylibmc.Client([server(address, weight) for address, weight, _ in servers])
    if distribution == "ketama":
        client.behaviors = {"ketama_weighted": True}
    else:
        client.behaviors = {"distribution": "modula", "hash": {"crc32": "crc"}.get(hash, hash)}
    for key in KEYS:
        assert client.set(key, value)


def set_through(proxy, value):
    with connect(proxy) as s, s.makefile("rb") as replies:
        for key in KEYS:
            s.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), len(value), value.encode()))
            assert replies.readline() == b"STORED\r\n"


def twemproxy_pool(number, distribution, hash, servers):
    lines = [f"p{number}:", f"  listen: 127.77.9.1:{23000 + number}", f"  hash: {hash}",
             f"  distribution: {distribution.removesuffix('_sorted')}", "  servers:"]
    lines += [f"    - {re.sub(r'[][]', '', address)}:{weight} {name}".rstrip() for address, weight, name in servers]
    return "\n".join(lines) + "\n"


def main():
    every = list(cases())
    addresses = {address for *_, servers in every for address, _, _ in servers}
    started = []
    with tempfile.TemporaryDirectory() as scratch:
        try:
            started += [start_memcached(address) for address in sorted(addresses)]
            conf = os.path.join(scratch, "nutcracker.yml")
            with open(conf, "w") as f:
                for number, (maker, distribution, hash, _, servers) in enumerate(every):
                    if maker == "twemproxy":
                        f.write(twemproxy_pool(number, distribution, hash, servers))
            started.append(subprocess.Popen(["nutcracker", "-c", conf, "-o", os.path.join(scratch, "log"),
                                             "-a", "127.77.9.1", "-s", "22999"]))
            with open(os.path.join(HERE, "keys.txt"), "w", encoding="utf-8") as f:
                f.write("".join(key + "\n" for key in KEYS))
            with open(os.path.join(HERE, "placements.txt"), "w") as f:
                f.write("# Where real libraries put the keys of keys.txt; made by make_placements.py.\n")
                f.write("# MAKER DISTRIBUTION HASH WHAT ADDRESS*WEIGHT=NAME,... and for each key the number of its server\n")
                for number, (maker, distribution, hash, pool, servers) in enumerate(every):
                    value = f"case-{number}"
                    if maker == "libmemcached":
                        set_through_libmemcached(distribution, hash, servers, value)
                    else:
                        proxy = f"127.77.9.1:{23000 + number}"
                        wait_for(proxy)
                        set_through(proxy, value)
                    held = [holds(address, value) for address, _, _ in servers]
                    assert sum(map(len, held)) == len(KEYS), (maker, distribution, hash, pool)
                    where = "".join(DIGITS[next(n for n, keys in enumerate(held) if key in keys)] for key in KEYS)
                    shown = ",".join(f"{address}*{weight}={name}" for address, weight, name in servers)
                    f.write(f"{maker} {distribution} {hash} {pool} {shown} {where}\n")
        finally:
            for process in started:
                process.kill()
                process.wait()
            for address in UNIX:
                if os.path.exists(address[5:]):
                    os.unlink(address[5:])


main()
