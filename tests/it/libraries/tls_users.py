"""What a TLS client does. python's ssl distinguishes a closed connection (close_notify) from one that was cut.

    tls_users.py WHAT HOST PORT CA [CERT KEY]
"""

import socket
import ssl
import sys
import time

what, host, port, ca = sys.argv[1:5]
own = sys.argv[5:7]


def context(**versions):
    context = ssl.create_default_context(cafile=ca)
    if own:
        context.load_cert_chain(*own)
    for name, version in versions.items():
        setattr(context, name, version)
    return context


def connect(context):
    plain = socket.create_connection((host, int(port)), timeout=20)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(plain, server_hostname=host, suppress_ragged_eofs=False)


def until_end(stream):
    """Everything received, and how the connection ends."""
    got = bytearray()
    while True:
        try:
            chunk = stream.recv(1 << 16)
        except ssl.SSLEOFError:
            return bytes(got), "cut"
        if not chunk:
            return bytes(got), "ended"
        got += chunk


def versions():
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        stream = connect(context(minimum_version=version, maximum_version=version))
        stream.sendall(b"set v 0 0 1\r\nx\r\nget v\r\nquit\r\n")
        got, end = until_end(stream)
        assert got == b"STORED\r\nVALUE v 0 1\r\nx\r\nEND\r\n", got
        print(stream.version(), end)


def late():
    """Reads only once the replies are on their way: no byte may be lost, whatever size just fills the buffers in between.
    The pauses make that likely; nothing depends on them."""
    size = 30_000
    stream = connect(context())
    stream.sendall(b"set p 0 0 %d\r\n" % size + b"y" * size + b"\r\n")
    assert stream.recv(100) == b"STORED\r\n"
    one = b"VALUE p 0 %d\r\n" % size + b"y" * size + b"\r\nEND\r\n"
    for times in range(1, 250):
        stream.sendall(b"get p\r\n" * times)
        time.sleep(0.01)
        got = bytearray()
        while len(got) < times * len(one):
            got += stream.recv(1 << 20)
        assert bytes(got) == one * times
    print("all of it")


def late_quit():
    """As above, but each connection has sent quit, and the client reads later than a close may take."""
    size = 30_000
    one = b"VALUE p 0 %d\r\n" % size + b"y" * size + b"\r\nEND\r\n"
    first = connect(context())
    first.sendall(b"set p 0 0 %d\r\n" % size + b"y" * size + b"\r\n")
    assert first.recv(100) == b"STORED\r\n"
    asked = [(times, connect(context())) for times in range(130, 152, 1)]
    for times, stream in asked:
        stream.sendall(b"get p\r\n" * times + b"quit\r\n")
    time.sleep(1.5)
    for times, stream in asked:
        got, _ = until_end(stream)
        assert got == one * times, f"{len(got)} of {times * len(one)} bytes"
    print("all of it")


def hold():
    stream = connect(context())
    stream.sendall(b"version\r\n")
    assert stream.recv(100).startswith(b"VERSION 1.6")
    print("in", flush=True)
    got, end = until_end(stream)
    assert got == b"", got
    print(end)


def goodbye():
    """Ends its side first, and waits for the other side to end."""
    stream = connect(context())
    stream.sendall(b"get nothing\r\nversion\r\n")
    got = bytearray()
    while got.count(b"\r\n") < 2:
        got += stream.recv(1 << 16)
    assert got.startswith(b"END\r\nVERSION"), got
    # unwrap sends our close_notify and waits for theirs.
    stream.unwrap()
    print("both ended")


def password():
    stream = connect(context())
    stream.sendall(b"get a\r\n")
    assert stream.recv(100) == b"CLIENT_ERROR unauthenticated\r\n"
    stream.sendall(b"set auth 0 0 9\r\nuser pass\r\nget a\r\n")
    got = bytearray()
    while not got.endswith(b"END\r\n"):
        got += stream.recv(100)
    assert got == b"STORED\r\nEND\r\n", got
    print("in")


def pymemcache():
    from pymemcache.client.base import Client

    client = Client((host, int(port)), tls_context=context(), timeout=20, no_delay=True)
    assert client.set("p", b"v" * 100_000, noreply=False)
    assert client.get("p") == b"v" * 100_000
    assert client.get_many(["p", "q"]) == {"p": b"v" * 100_000}
    assert client.delete("p", noreply=False)
    client.close()
    print("done")


def refused():
    """The handshake fails, or in TLS 1.3 the first read after it."""
    try:
        stream = connect(context())
        stream.sendall(b"version\r\n")
        print("answered", stream.recv(100))
    except (ssl.SSLError, ConnectionError):
        print("refused")


globals()[what]()
