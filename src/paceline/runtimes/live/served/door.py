"""Who may come in: only connections that prove to have the run's secret. The others are counted."""

import threading
from collections import Counter
from contextlib import suppress

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

_ZAP = "inproc://zeromq.zap.01"
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_WATCHED = _FAILED | zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Door:
    """A thread that answers ZeroMQ's questions about clients' keys (RFC 27) and watches handshakes fail.

    ``refused`` counts "stranger" (no CURVE, or nothing that speaks ZeroMQ at all) and "wrong key".
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", socket: "zmq.Socket[bytes]", worker_key: bytes
    ) -> None:
        """Made before ``socket`` is bound, in the context that is its own."""
        self.refused: Counter[str] = Counter(
            {"stranger": 0, "wrong key": 0}
        )  # read by another thread: of one size
        self._key = z85.decode(worker_key)
        self._questions = context.socket(zmq.REP)
        self._questions.linger = 0
        self._questions.bind(_ZAP)
        self._events = socket.get_monitor_socket(_WATCHED)
        self._handshaking: list[int] = []
        self._counted = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="paceline-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; the socket is to be closed after this."""
        self._closing.set()
        self._thread.join()

    def _watch(self) -> None:
        poller = zmq.Poller()
        poller.register(self._questions, zmq.POLLIN)
        poller.register(self._events, zmq.POLLIN)
        while not self._closing.is_set():
            for ready, _ in poller.poll(100):
                with suppress(zmq.Again):
                    self._answer() if ready is self._questions else self._notice()
        self._questions.close()
        self._events.close(linger=0)

    def _answer(self) -> None:
        """The reply says 200 to the key that is derived from the secret and 400 to all others."""
        question = self._questions.recv_multipart(zmq.NOBLOCK)
        known = len(question) == 7 and question[5] == b"CURVE" and question[6] == self._key
        number = question[1] if len(question) > 1 else b""
        self._questions.send_multipart([b"1.0", number, b"200" if known else b"400", b"", b"", b""])

    def _notice(self) -> None:
        """Connections are known by their file, but a handshake's success does not say whose it was.

        It is taken for the newest connection's. Which of two is counted as refused first may then be wrong, the sum
        is not.
        """
        message = recv_monitor_message(self._events, zmq.NOBLOCK)
        event, value = message["event"], message["value"]
        if event == zmq.EVENT_ACCEPTED:
            self._handshaking.append(value)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            del self._handshaking[-1:]
        elif event == zmq.EVENT_DISCONNECTED:
            if value in self._handshaking:
                self._handshaking.remove(value)
                self.refused["stranger"] += not self._counted
            self._counted = False
        else:
            wrong_key = (
                event == zmq.EVENT_HANDSHAKE_FAILED_AUTH or value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
            )
            self.refused["wrong key" if wrong_key else "stranger"] += 1
            self._counted = True
