#!/usr/bin/env python3
"""Writes keys.txt, tagged_keys.txt and placements.txt: where twemproxy and client libraries put keys.

Run: ../../target/venv/bin/python make_placements.py   after scripts/test, which installs the libraries. It also needs nutcracker
(twemproxy), libspymemcached-java and a JDK; takes a minute.

Nothing here computes a placement. Real memcached servers are started on addresses of the loopback network, every key is
set through libmemcached (by pylibmc), through a running twemproxy, or through the scripts of tests/it/libraries/spread, and then
each server is asked directly which keys it holds. The addresses matter, because ketama hashes them; 127.77.0.0/16 avoids conflicts.
spymemcached is asked for the server of a key. For ch3, mcrouter's own mcrouter/lib/fbi/hash.c was
compiled into the program $FURC, which prints furc_hash of each line of its input for the number of servers in its argument.

Made on x86-64 with memcached 1.6.18 and the VERSIONS below.
"""

import os
import re
import socket
import subprocess
import sys
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

# For `hash_tag: "{}"`.
TAGGED = [f"page:{n}:{{user:{n % 90}}}" for n in range(180)]
TAGGED += [f"{{{n}}}:{{x}}" for n in range(10)] + [f"{{}}{{{n}}}" for n in range(10)] + [f"{{{{{n}}}" for n in range(10)]
TAGGED += [f"}}{n}{{" for n in range(10)] + [f"{n}{{a}}" for n in range(10)] + [f"{{{n}" for n in range(10)]

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
    "two": spec(SAME_PORT[:2]),
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


VERSIONS = {
    "libmemcached": "1.0.16, as pylibmc 1.6.3 reports it",
    "twemproxy": "0.5.0",
    "php_memcached": "3.2.0 with libmemcached 1.1.4",
    "php_memcache": "4.0.5.2",
    "cache_memcached": "1.30",
    "pymemcache": "4.0.0",
    "python_memcached": "1.62",
    "dalli": "3.2.8",
    "gomemcache": "of Debian 13",
    "node_memcached": "2.2.2 with hashring 3.2.0",
    "memjs": "1.3.2",
    "spymemcached": "2.12.3",
    "mcrouter": "of 9d7f4342",
}
# Libraries that refuse other keys.
ASCII_ONLY = {"php_memcached", "dalli"}
HASHES = ("one_at_a_time", "crc16", "fnv1_64", "fnv1a_64", "fnv1_32", "hsieh", "murmur", "jenkins")
# libmemcached's words for them.
WORDS = {"crc32": "crc", "one_at_a_time": "default"}
# How the scripts of tests/it/libraries/spread are run.
TARGET = os.path.join(HERE, "../../target")
SPREAD = os.path.join(HERE, "../it/libraries/spread")
RUN = {
    "python": [sys.executable, "spread.py"],
    "php": ["php", "php_memcached.php"],
    "perl": ["perl", "cache_memcached.pl"],
    "ruby": ["ruby", "-I", f"{TARGET}/debian/usr/share/rubygems-integration/all/gems/dalli-3.2.8/lib", "dalli.rb"],
    "node": ["node", "spread.js"],
    "go": ["go", "run", "gomemcache.go"],
    "java": ["java", "-cp", "/usr/share/java/spymemcached.jar", "Spymemcached.java"],
}
RUNS = {"pymemcache": "python", "python_memcached": "python", "dalli": "ruby", "node_memcached": "node", "memjs": "node",
        "gomemcache": "go", "php_memcache": "php", "php_memcache:consistent": "php", "cache_memcached": "perl",
        "spymemcached": "java", "spymemcached:array": "java"}


def cases():
    yield from cases_of_proxies()
    for maker, distribution, hash, pools in [
        ("libmemcached:consistent:default", "consistent", "one_at_a_time", ("three", "eight-mixed", "twenty-five")),
        ("libmemcached:consistent:md5", "consistent", "md5", ("eight-mixed",)),
        ("libmemcached:consistent:murmur", "consistent", "murmur", ("eight-mixed",)),
        ("libmemcached:consistent:fnv1a_64", "consistent", "fnv1a_64", ("eight-mixed",)),
        # What it does unless it is told otherwise.
        ("libmemcached::", "modula", "one_at_a_time", ("three", "eight-mixed")),
        ("php_memcached", "modula", "one_at_a_time", ("three", "eight-mixed")),
        ("php_memcached:consistent", "consistent", "one_at_a_time", ("three", "eight-mixed", "twenty-five")),
        ("php_memcached:compatible", "ketama", "md5", ("eight-weighted",)),
        ("php_memcached", "modula", "one_at_a_time+app:", ("three", "eight-mixed")),
        ("php_memcached:consistent", "consistent", "one_at_a_time+app:", ("eight-mixed",)),
        ("php_memcached:compatible", "ketama", "md5+app:", ("eight-weighted",)),
        ("php_memcache", "modula_weighted", "crc32", ("three", "eight-mixed", "three-weighted")),
        ("php_memcache:consistent", "php_memcache", "crc32a",
         ("two-unequal", "three", "eight-mixed", "eight-weighted", "twenty-five")),
        ("cache_memcached", "modula_weighted", "crc32", ("three", "eight-mixed", "eight-weighted")),
        ("pymemcache", "pymemcache", "murmur3", ("three", "eight-mixed", "twenty-five")),
        ("pymemcache", "pymemcache", "murmur3+app:", ("eight-mixed",)),
        ("python_memcached", "modula_weighted", "crc32", ("three", "eight-mixed", "eight-weighted")),
        ("dalli", "dalli", "crc32a", ("three", "eight-mixed", "eight-weighted", "twenty-five")),
        ("node_memcached", "hashring", "md5", ("three", "eight-mixed", "eight-weighted", "twenty-five")),
        ("memjs", "modula", "memjs", ("three", "eight-mixed")),
        ("gomemcache", "modula", "crc32a", ("three", "eight-mixed")),
        ("spymemcached", "spymemcached", "md5", ("three", "eight-mixed", "twenty-five")),
        ("spymemcached:array", "modula", "java", ("three", "eight-mixed")),
        ("mcrouter", "ch3", "murmur64a", ("two", "three", "seven", "eight-mixed", "twenty-five")),
    ]:
        for pool in pools:
            yield maker, distribution, hash, pool, POOLS[pool]


def cases_of_proxies():
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
    for hash in HASHES:
        yield "twemproxy", "ketama", hash, "eight-weighted", POOLS["eight-weighted"]
        yield "twemproxy", "modula_sorted", hash, "three-weighted", POOLS["three-weighted"]
        # pylibmc's libmemcached is built without hsieh.
        if hash not in ("crc16", "hsieh"):
            yield "libmemcached", "modula", hash, "eight-mixed", POOLS["eight-mixed"]
    for pool in ("three", "three-mixed", "twenty-five", "eight-ports"):
        yield "twemproxy", "ketama", "fnv1a_64", pool, POOLS[pool]
    yield "twemproxy", "ketama", "fnv1a_64", "eight-partly-named", NAMED["eight-partly-named"]
    for hash in ("fnv1a_64", "md5"):
        yield "twemproxy", "ketama", hash + "+{}", "eight-weighted", POOLS["eight-weighted"]
    yield "twemproxy", "modula_sorted", "fnv1a_64+{}", "eight-mixed", POOLS["eight-mixed"]


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


def holds(address, value, keys):
    """Which keys the server at `address` holds with this value."""
    with connect(address) as s, s.makefile("rb") as replies:
        s.sendall(b"".join(b"get %s\r\n" % key.encode() for key in keys))
        held = set()
        for key in keys:
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
        client.behaviors = {"distribution": "modula", "hash": WORDS.get(hash, hash)}
    for key in KEYS:
        assert client.set(key, value)


def set_by_script(maker, prefix, servers, value):
    if maker.startswith("libmemcached"):
        maker, run = "pylibmc:" + maker.split(":", 1)[1], RUN["python"]
    else:
        run = RUN["php" if maker.startswith("php_memcached") else RUNS[maker]]
    arguments = [f"{address}:{weight}" for address, weight, _ in servers]
    environment = os.environ | {"NODE_PATH": f"{TARGET}/node/node_modules", "GO111MODULE": "off",
                                "GOPATH": f"{TARGET}/debian/usr/share/gocode", "GOCACHE": f"{TARGET}/go"}
    subprocess.run([*run, maker, value, prefix, *arguments], cwd=SPREAD, env=environment, check=True,
                   input="".join(key + "\n" for key in KEYS if can_set(maker, prefix + key)).encode(), stdout=subprocess.PIPE)


def can_set(maker, key):
    # With a prefix, some libraries count more bytes than memcached.
    if key.startswith("app:") and len(key) > 200:
        return False
    return key.isascii() or maker.split(":")[0] not in ASCII_ONLY


def ask_mcrouter(servers):
    """The number of the server for each key, by furc_hash."""
    run = subprocess.run([os.environ["FURC"], str(len(servers))], check=True, stdout=subprocess.PIPE,
                         input="".join(key + "\n" for key in KEYS).encode())
    return "".join(DIGITS[int(line)] for line in run.stdout.split())


def set_through(proxy, value, keys):
    with connect(proxy) as s, s.makefile("rb") as replies:
        for key in keys:
            s.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), len(value), value.encode()))
            assert replies.readline() == b"STORED\r\n"


def twemproxy_pool(number, distribution, hash, servers):
    hash, _, tag = hash.partition("+")
    lines = [f"p{number}:", f"  listen: 127.77.9.1:{23000 + number}", f"  hash: {hash}"]
    lines += [f'  hash_tag: "{tag}"'] if tag else []
    lines += [f"  distribution: {distribution.removesuffix('_sorted')}", "  servers:"]
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
            with open(os.path.join(HERE, "tagged_keys.txt"), "w") as f:
                f.write("".join(key + "\n" for key in TAGGED))
            with open(os.path.join(HERE, "placements.txt"), "w") as f:
                f.write("# Where real libraries put the keys of keys.txt; made by make_placements.py.\n")
                f.write("# MAKER DISTRIBUTION HASH WHAT ADDRESS*WEIGHT=NAME,... and for each key the number of its server\n")
                f.write("# HASH+{} has a hash tag, and the keys are those of tagged_keys.txt. With HASH+PREFIX each key has this prefix.\n")
                f.write("# -: the library refuses the key.\n")
                f.writelines(f"# {maker}: {version}\n" for maker, version in VERSIONS.items())
                for number, (maker, distribution, hash, pool, servers) in enumerate(every):
                    value = f"case-{number}"
                    part = hash.partition("+")[2]
                    keys = TAGGED if part == "{}" else [part + key for key in KEYS]
                    if maker == "mcrouter":
                        where = ask_mcrouter(servers)
                    else:
                        if maker == "libmemcached":
                            set_through_libmemcached(distribution, hash, servers, value)
                        elif maker == "twemproxy":
                            proxy = f"127.77.9.1:{23000 + number}"
                            wait_for(proxy)
                            set_through(proxy, value, keys)
                        else:
                            set_by_script(maker, part, servers, value)
                        accepted = [key for key in keys if can_set(maker, key)]
                        held = [holds(address, value, accepted) for address, _, _ in servers]
                        assert sum(map(len, held)) == len(accepted), (maker, hash, pool)
                        found = [next((n for n, of in enumerate(held) if key in of), None) for key in keys]
                        where = "".join("-" if n is None else DIGITS[n] for n in found)
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
