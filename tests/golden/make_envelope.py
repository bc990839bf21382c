#!/usr/bin/env python3
"""Writes envelope.txt: stored bytes as docs/wire-format.md describes them, made without Kennel or bincode.

Run: python3 make_envelope.py > envelope.txt
"""

import gzip
import json
import marshal
import pickle
import struct
import zlib

MAGIC = b"\xf7\xcb\xce\xcc"


def tag_list(tags):
    out = bytes([len(tags)])
    for name, version in tags:
        out += bytes([len(name)]) + name.encode() + struct.pack("<Q", version)
    return out


def header(stale_for, built_at, rebuild, tags, version=1, stub=0, fence=None):
    rest = struct.pack("<IQI", stale_for, built_at | stub << 44, rebuild)
    if fence is not None:
        version, rest = 2, rest + struct.pack("<Q", fence)
    rest += tag_list(tags)
    return MAGIC + struct.pack("<BH", version, 7 + len(rest)) + rest


def shown(tags):
    return ",".join(f"{name}={version}" for name, version in tags) or "-"


def sealed(what, stale_for, built_at, rebuild, tags, payload, stub=0, fence=0):
    head = header(stale_for, built_at, rebuild, tags, stub=stub, fence=fence or None)
    numbers = (stale_for, built_at, stub, rebuild, fence)
    print("sealed", what, *numbers, shown(tags), head.hex(), payload.hex() or "-")


def unreadable(what, item):
    print("unreadable", what, item.hex())


def plain(what, item):
    print("plain", what, item.hex() or "-")


def lock(what, granted_at, sidecar, tags, fence=0):
    body = struct.pack("<BQQ", 2 if fence else 1, granted_at, sidecar)
    body += (struct.pack("<Q", fence) if fence else b"") + tag_list(tags)
    print("lock", what, granted_at, sidecar, fence, shown(tags), body.hex())


print("# Stored bytes and what they mean; made by make_envelope.py. '-' is nothing.")
print("# sealed WHAT STALE_FOR(s) BUILT_AT(ms) STUB REBUILD(ms) FENCE TAGS(name=version,…) HEADER(hex) PAYLOAD(hex)")
sealed("zero-tags", 60, 1700000000000, 250, [], b"hello")
sealed("two-tags", 60, 1700000000000, 250, [("blog:7", 1699999999000), ("posts", 1600000000000)], b"<p>Hi</p>")
sealed("empty-payload", 0, 0, 0, [("t", 0)], b"")
sealed("payload-that-is-an-envelope", 1, 2, 3, [], header(4, 5, 6, []))
sealed("max-values", 2**32 - 1, 2**44 - 1, 2**32 - 1, [("n" * 250, 2**64 - 1)], b"x", stub=2**20 - 1)
sealed("over-a-stub", 60, 1700000000000, 250, [("posts", 1600000000000)], b"hello", stub=0x12345)
sealed("most-tags", 86400, 1700000000000, 9, [(f"tag-{n}", n) for n in range(64)], b"x")
sealed("longest-header", 7, 8, 9, [("n" * 247, n) for n in range(63)] + [("n" * 223, 63)], b"x")
sealed("fence-without-tags", 60, 1700000000000, 250, [], b"hello", fence=1700000000000 << 20 | 7)
sealed("fence-and-tag", 60, 1700000000000, 250, [("posts", 1600000000000)], b"hello", stub=9, fence=1)
sealed("max-fence", 2**32 - 1, 2**44 - 1, 2**32 - 1, [], b"", stub=2**20 - 1, fence=2**64 - 1)

print("# unreadable WHAT ITEM(hex)")
two = header(60, 1700000000000, 250, [("blog:7", 1), ("posts", 2)])
unreadable("format-2-without-its-fence", header(60, 1700000000000, 250, [], version=2) + b"hello")
unreadable("fence-0", header(60, 1700000000000, 250, [], fence=0) + b"hello")
unreadable("format-1-with-a-fence", header(60, 1700000000000, 250, [], fence=7).replace(b"\x02", b"\x01", 1))
unreadable("format-3", header(60, 1700000000000, 250, [], version=3) + b"hello")
unreadable("format-255-with-another-layout", MAGIC + b"\xff\x00\x00")
unreadable("format-0", header(60, 1700000000000, 250, [], version=0) + b"hello")
unreadable("magic-alone", MAGIC)
unreadable("length-0", MAGIC + struct.pack("<BH", 1, 0) + two[7:])
unreadable("length-of-the-preamble", MAGIC + struct.pack("<BH", 1, 7) + two[7:])
unreadable("length-one-less", MAGIC + struct.pack("<BH", 1, len(two) - 1) + two[7:])
unreadable("length-one-more", MAGIC + struct.pack("<BH", 1, len(two) + 1) + two[7:] + b"hello")
unreadable("length-beyond-the-item", MAGIC + struct.pack("<BH", 1, 0xFFFF) + two[7:])
unreadable("one-tag-too-few-counted", two[:23] + b"\x01" + two[24:])
unreadable("255-tags-counted", two[:23] + b"\xff" + two[24:])
unreadable("nameless-tag", header(1, 2, 3, [("", 4)]))
unreadable("name-of-251-bytes", header(1, 2, 3, [("n" * 251, 4)]))
unreadable("65-tags", header(1, 2, 3, [("t", 4)] * 65))
unreadable("header-longer-than-16-KiB", header(7, 8, 9, [("n" * 247, n) for n in range(63)] + [("n" * 224, 63)]))

print("# plain WHAT ITEM(hex)")
plain("empty", b"")
plain("text", b"hello")
plain("the-first-three-bytes-of-the-magic", MAGIC[:3])
plain("magic-not-at-the-start", b"x" + header(1, 2, 3, []))
plain("gzip", gzip.compress(b"hello", mtime=0))
plain("zlib", zlib.compress(b"hello"))
plain("zstd", bytes.fromhex("28b52ffd"))
plain("lz4", bytes.fromhex("04224d18"))
plain("pickle", pickle.dumps({"a": 1}, protocol=4))
plain("python-marshal", marshal.dumps({"a": 1}, 4))
plain("ruby-marshal", bytes.fromhex("04087b06"))
plain("php", b'a:1:{s:1:"a";i:1;}')
plain("igbinary", bytes.fromhex("0000000214011101610601"))
plain("msgpack-map", bytes.fromhex("81a16101"))
plain("java", bytes.fromhex("aced0005"))
plain("utf-16-with-bom", "\ufeffa".encode("utf-16-le"))
plain("json", json.dumps({"a": 1}).encode())

print("# lock WHAT GRANTED_AT(ms) SIDECAR FENCE TAGS(name=version,…) VALUE(hex)")
lock("zero-tags", 1700000000000, 0xFEEDFACECAFEBEEF, [])
lock("two-tags", 1700000000000, 7, [("blog:7", 1699999999000), ("posts", 1600000000000)])
lock("max-values", 2**64 - 1, 2**64 - 1, [("n" * 250, 2**64 - 1)])
lock("fence", 1700000000000, 7, [("posts", 1600000000000)], fence=1700000000000 << 20 | 7)
