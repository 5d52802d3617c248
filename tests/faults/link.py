"""Two network namespaces joined by a wire that loses, delays, doubles and reorders packets.

As a program it is that wire: it makes two namespaces with a TUN device each (10.77.0.1 and
10.77.0.2), prints where they are, and carries IP packets between them in user space (no netem
module is needed). Orders are lines of JSON on stdin. `Link` is the tests' handle on it.

    link.py wire SEED                       the wire
    link.py enter NAMESPACE COMMAND …       COMMAND in that namespace
    link.py relay ADDRESS PORT UNIX_SOCKET  a TCP port whose connections go on to a unix socket
"""

import asyncio
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time

ADDRESSES = ("10.77.0.1", "10.77.0.2")
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
SIOCSIFADDR, SIOCSIFNETMASK = 0x8916, 0x891C
QUEUE_PACKETS = 4096  # on the wire at once; beyond, packets are dropped as by a router

libc = ctypes.CDLL(None, use_errno=True)


def check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def interface_request(name, payload):
    return struct.pack("16s24s", name.encode(), payload)


def set_up(name, address=None):
    """Gives the interface its address and switches it on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for order, text in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.0")):
            if address is not None:
                payload = struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(text))
                fcntl.ioctl(control, order, interface_request(name, payload))
        flags, = struct.unpack_from("H", fcntl.ioctl(control, SIOCGIFFLAGS, interface_request(name, b"")), 16)
        fcntl.ioctl(control, SIOCSIFFLAGS, interface_request(name, struct.pack("H", flags | IFF_UP)))


def new_end(address):
    """A namespace of its own with one TUN device. (descriptor of the device, of the namespace)"""
    check(libc.unshare(CLONE_NEWNET), "a network namespace")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"wire", IFF_TUN | IFF_NO_PI))
    set_up("lo")
    set_up("wire", address)
    return tun, os.open("/proc/thread-self/ns/net", os.O_RDONLY)


class Wire:
    """Carries packets from each end to the other until stdin ends."""

    def __init__(self, ends, seed):
        self.ends = ends
        self.random = random.Random(seed)
        self.rules = {"drop": 0.0, "double": 0.0, "delay_ms": 0.0, "jitter_ms": 0.0, "cut": False}
        self.counts = {"packets": 0, "dropped": 0, "doubled": 0}
        self.waiting = []  # heap of (due, number, end, packet)
        self.numbers = itertools.count()

    def run(self):
        while True:
            left = max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            ready, _, _ = select.select([*self.ends, sys.stdin], [], [], left)
            for end in (0, 1):
                if self.ends[end] in ready:
                    self.take(end)
            self.deliver()
            if sys.stdin in ready and not self.obey(sys.stdin.readline()):
                return

    def take(self, end):
        while True:
            try:
                packet = os.read(self.ends[end], 65536)
            except BlockingIOError:
                return
            self.counts["packets"] += 1
            lost = self.rules["cut"] or self.random.random() < self.rules["drop"]
            if lost or len(self.waiting) >= QUEUE_PACKETS:
                self.counts["dropped"] += 1
                continue
            copies = 2 if self.random.random() < self.rules["double"] else 1
            self.counts["doubled"] += copies - 1
            for _ in range(copies):
                ms = self.rules["delay_ms"] + self.random.uniform(0, self.rules["jitter_ms"])
                due = time.monotonic() + ms / 1000
                heapq.heappush(self.waiting, (due, next(self.numbers), 1 - end, packet))

    def deliver(self):
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(self.waiting)
            try:
                os.write(self.ends[end], packet)
            except OSError:
                self.counts["dropped"] += 1

    def obey(self, line):
        if not line:
            return False
        self.rules.update(json.loads(line))
        print(json.dumps(self.counts), flush=True)
        return True


def enter(namespace, command):
    descriptor = os.open(namespace, os.O_RDONLY)
    check(libc.setns(descriptor, CLONE_NEWNET), f"cannot enter {namespace}")
    os.execvp(command[0], command)


async def relay(address, port, path):
    async def copy(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def serve(reader, writer):
        try:
            other_reader, other_writer = await asyncio.open_unix_connection(path)
        except OSError:
            return writer.close()
        await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))

    server = await asyncio.start_server(serve, address, int(port))
    await server.serve_forever()


class Link:
    """A running wire. `Unavailable` says why there can be none here."""

    class Unavailable(Exception):
        pass

    def __init__(self, seed):
        self.process = subprocess.Popen([sys.executable, __file__, "wire", str(seed)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        first = json.loads(self.process.stdout.readline())
        if "error" in first:
            self.process.wait()
            raise Link.Unavailable(first["error"])
        self.namespaces = first["namespaces"]

    def prefix(self, end):
        """What to put before a command so that it runs at that end."""
        return [sys.executable, __file__, "enter", self.namespaces[end]]

    def relay(self, end, port, path):
        return [*self.prefix(end), sys.executable, __file__, "relay", ADDRESSES[end], str(port), str(path)]

    def set(self, **rules):
        """Changes the wire's rules. What it has counted so far."""
        self.process.stdin.write(json.dumps(rules) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main(mode, *arguments):
    if mode == "enter":
        enter(arguments[0], arguments[1:])
    if mode == "relay":
        return asyncio.run(relay(*arguments))
    try:
        ends = [new_end(address) for address in ADDRESSES]
    except OSError as error:
        return print(json.dumps({"error": str(error)}), flush=True)
    places = [f"/proc/{os.getpid()}/fd/{namespace}" for _, namespace in ends]
    print(json.dumps({"namespaces": places}), flush=True)
    Wire([tun for tun, _ in ends], int(arguments[0])).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
