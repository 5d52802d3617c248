"""A wire between workers and coordinator that changes messages, and a worker that says what it likes.

Frames are those of common/wire.h: [empty]["BA1"][type][correlation id][json header][blob…].
"""

import contextlib
import json
import struct
import threading

import zmq

VERSION = b"BA1"


def packed(sums, tokens):
    """A unit's result as pack() of common/score_table.h lays it out: three vectors with their counts."""
    return (struct.pack("<Q", len(sums)) + struct.pack(f"<{len(sums)}d", *sums) +
            struct.pack("<Q", len(tokens)) + struct.pack(f"<{len(tokens)}q", *tokens) + struct.pack("<Q", 0))


class Mangler(threading.Thread):
    """Workers connect to `front`; what they say goes through `change(frames)` to the coordinator at
    `back`, and its answers come back through `change_back`. Either gives the list of messages to send
    instead."""

    def __init__(self, front, back, change, change_back):
        super().__init__(daemon=True)
        self.change = change
        self.change_back = change_back
        self.back = back
        self.context = zmq.Context()
        self.workers = self.context.socket(zmq.ROUTER)
        self.workers.bind(front)
        self.lines = {}  # a DEALER to the coordinator for every worker
        self.over = threading.Event()

    def run(self):
        poller = zmq.Poller()
        poller.register(self.workers, zmq.POLLIN)
        while not self.over.is_set():
            for socket, _ in poller.poll(50):
                if socket is self.workers:
                    self.from_worker(poller, self.workers.recv_multipart())
                else:
                    worker = next(name for name, line in self.lines.items() if line is socket)
                    for changed in self.change_back(socket.recv_multipart()):
                        self.workers.send_multipart([worker, *changed])
        self.context.destroy(linger=0)

    def from_worker(self, poller, frames):
        worker, message = frames[0], frames[1:]
        if worker not in self.lines:
            self.lines[worker] = self.context.socket(zmq.DEALER)
            self.lines[worker].connect(self.back)
            poller.register(self.lines[worker], zmq.POLLIN)
        for changed in self.change(message):
            self.lines[worker].send_multipart(changed)

    def close(self):
        self.over.set()
        self.join()


class RawWorker:
    """Speaks to the coordinator frame by frame; knows no model."""

    def __init__(self, endpoint, epoch):
        self.epoch = epoch
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.connect(endpoint)

    def send(self, kind, blobs=(), **header):
        self.send_frames([b"", VERSION, kind.encode(), b"c",
                          json.dumps({"epoch": self.epoch, **header}).encode(), *blobs])

    def send_frames(self, frames):
        self.socket.send_multipart(frames)

    def receive(self, *kinds, seconds=20):
        """The header of the next message of one of these types; others are skipped."""
        while True:
            assert self.socket.poll(1000 * seconds), f"no {' or '.join(kinds)} within {seconds} s"
            frames = self.socket.recv_multipart()
            if frames[2].decode() in kinds:
                return json.loads(frames[4])

    def take_unit(self):
        """Says hello and gets one unit: its lease, as results name it."""
        self.send("hello")
        self.receive("ok")
        self.send("ready", credits=1)
        unit = self.receive("unit")
        return {key: unit[key] for key in ("search", "unit", "fence")}

    def close(self):
        with contextlib.suppress(zmq.ZMQError):
            self.send("bye")
            self.receive("ok", seconds=2)
        self.context.destroy(linger=0)
