"""TLS of one version in front of a server: tls_relay.py VERSION CERT KEY PORT. Prints its own port, and ends with its standard
input."""

import os
import socket
import ssl
import sys
import threading

version, cert, key, port = sys.argv[1:5]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
context.load_cert_chain(cert, key)
listener = socket.create_server(("127.0.0.1", 0))


def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def serve(client):
    try:
        client = context.wrap_socket(client, server_side=True)
        server = socket.create_connection(("127.0.0.1", int(port)))
    except OSError:
        return
    threading.Thread(target=copy, args=(client, server), daemon=True).start()
    copy(server, client)


def accept():
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client,), daemon=True).start()


print(listener.getsockname()[1], flush=True)
threading.Thread(target=accept, daemon=True).start()
sys.stdin.read()
os._exit(0)
