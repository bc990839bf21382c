#!/usr/bin/env python3
"""Writes pins.txt: where jump and rendezvous put the keys of keys.txt, by a second implementation.

No other program places keys exactly like this, so the file pins the placement: a change would empty the caches of its
users. The functions below and src/upstream/ring.rs describe the algorithms.

Run: python3 make_pins.py
"""

import hashlib
import math
import os

HERE = os.path.dirname(os.path.abspath(__file__))
U64 = 2**64 - 1

POOLS = {
    "one": [("10.0.0.1:11211", 1, "")],
    "three": [(f"10.0.0.{n}:11211", 1, "") for n in (1, 2, 3)],
    "three-named": [(f"10.0.0.{n}:11211", 1, name) for n, name in ((1, "a"), (2, "b"), (3, "c"))],
    "three-weighted": [("10.0.0.1:11211", 1, ""), ("10.0.0.2:11311", 2, "b"), ("10.0.0.3:11311", 3, "")],
    "three-v6": [(f"[fd00::{n}]:11311", 1, "") for n in (1, 2, 3)],
    "three-unix": [(f"unix:/run/memcached/{n}", 1, "") for n in (1, 2, 3)],
    "eight": [(f"10.0.0.{n}:11211", 1, "") for n in range(1, 9)],
    "eight-weighted": [(f"10.0.0.{n}:{11210 + n}", w, "") for n, w in enumerate([1, 2, 3, 5, 8, 13, 21, 34], 1)],
}


def md5_64(data):
    """The first eight bytes of the MD5, little-endian."""
    return int.from_bytes(hashlib.md5(data).digest()[:8], "little")


def jump(servers, key):
    """Lamping and Veach's ch() over the servers, each repeated as often as it weighs."""
    slots = [n for n, (_, weight, _) in enumerate(servers) for _ in range(weight)]
    state, b, j = md5_64(key), -1, 0
    while j < len(slots):
        b = j
        state = (state * 2862933555777941757 + 1) & U64
        j = int((b + 1) * (float(1 << 31) / float((state >> 33) + 1)))
    return slots[b]


def identity(address, name):
    if name:
        return name
    if address.startswith("unix:"):
        return address[5:] + ":0"
    host, port = address.rsplit(":", 1)
    host = host.strip("[]")
    return host if port == "11211" else f"{host}:{port}"


def splitmix64(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & U64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & U64
    return z ^ (z >> 31)


def rendezvous(servers, key):
    """The highest -weight / ln(h), h the upper 52 bits of splitmix64(md5_64(server) ^ md5_64(key)) as a fraction, plus half."""
    def score(server):
        address, weight, name = server
        drawn = splitmix64(md5_64(identity(address, name).encode()) ^ md5_64(key)) >> 12
        return -weight / math.log((drawn + 0.5) / 2**52)

    scores = [score(server) for server in servers]
    return scores.index(max(scores))


with open(os.path.join(HERE, "keys.txt"), encoding="utf-8") as f:
    KEYS = f.read().split("\n")[:-1]

with open(os.path.join(HERE, "pins.txt"), "w") as f:
    f.write("# Where a second implementation puts the keys of keys.txt; made by make_pins.py.\n")
    f.write("# MAKER DISTRIBUTION HASH WHAT ADDRESS*WEIGHT=NAME,... and for each key the number of its server\n")
    for place in (jump, rendezvous):
        for pool, servers in POOLS.items():
            where = "".join(str(place(servers, key.encode())) for key in KEYS)
            shown = ",".join(f"{address}*{weight}={name}" for address, weight, name in servers)
            f.write(f"python {place.__name__} md5 {pool} {shown} {where}\n")
