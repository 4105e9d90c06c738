# ruff: noqa: F821
# mypy: ignore-errors
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic

# ======================================================================================================================
# 10. A server (chapter 15)
# ======================================================================================================================

#: given ch15 Request
#: given ch15 Load
#: ch15.step
#: ch15.admit
#: ch15.fair
#: ch15.frames


class Busy(Exception):
    """A request that is not let in; `seconds` says when to come again, 0 means never."""

    def __init__(self, seconds):
        super().__init__(
            f"come again in {seconds} s" if seconds else "the text is longer than the memory for one request"
        )
        self.seconds = seconds


class Service:
    """Many requests at once: a rule at the door, a fair line, and a scheduler.

    Parameters
    ----------
    model : NumPyModel or CompiledModel
    streams : how many run at once
    rows : of a pass, at most
    longest : rows of memory for one request
    limit, patience : how many may wait, and how many seconds
    """

    def __init__(self, model, streams=4, rows=32, longest=1024, limit=16, patience=60.0):
        self.scheduler, self.queue = Scheduler(model, rows, streams), FairQueue()
        self.longest, self.limit, self.patience = longest, limit, patience
        self.left = []  # when the latest ones left the line
        self.changed = threading.Condition()
        self.error, self.closed = None, False

    @property
    def taken(self):
        """Places that are taken."""
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def load(self):
        """How busy it is; each place has memory for one request."""
        spent = self.left[-1] - self.left[0] if len(self.left) > 1 else 0
        free = self.longest if self.taken < self.scheduler.streams else 0
        return Load(self.longest, free, len(self.queue), (len(self.left) - 1) / spent if spent else 0.0)

    def submit(self, request, tenant=""):
        """Let a request in, or raise Busy."""
        need = request.prompt + request.max_tokens
        with self.changed:
            verdict, seconds = admit(need, self.load(), self.limit, self.patience)
            if verdict in ("never", "later"):
                raise Busy(seconds)
            self.queue.push(tenant, request, need)
            self.changed.notify_all()

    def step(self):
        """Fill the places that are free, run one pass, tell those who read along."""
        with self.changed:
            while len(self.queue) and self.taken < self.scheduler.streams:
                self.scheduler.submit(self.queue.pop())
                self.left = [*self.left, monotonic()][-16:]
        passed = self.scheduler.step()
        with self.changed:
            self.changed.notify_all()
        return passed

    def run(self):
        """Step for as long as the service is open; the one thread that runs the model."""
        try:
            while not self.closed:
                if not self.step():
                    with self.changed:
                        self.changed.wait_for(lambda: len(self.queue) or self.closed)
        except BaseException as error:
            with self.changed:
                self.error = error  # nobody waits for ever
                self.changed.notify_all()

    def close(self):
        """Let `run` end after its pass."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def events(self, request, piece):
        """The reply of a request that was let in, as server-sent events; `piece(token)` is a token's bytes."""
        frames, read = Frames(), 0
        try:
            while True:
                with self.changed:
                    self.changed.wait_for(
                        lambda read=read: len(request.said) > read or request.ended or self.error or self.closed
                    )
                ended, said = request.ended, request.said  # in this order: what has ended says nothing more
                for token in said[read:]:
                    data = b"" if token == request.stop else frames.push(piece(token))
                    if data:
                        yield data
                read = len(said)
                if error := self.error or request.error:
                    raise error
                if ended or self.closed:
                    yield frames.end("stop" if said[-1:] == [request.stop] else "length")
                    return
        finally:
            request.gone = True


def listen(service, tokenizer, port):
    """An HTTP server on this machine: POST {"prompt", "max_tokens", "temperature", "seed"}, and read events."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            try:
                request = self.asked()
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self.send_error(400, explain=str(error))
                return
            try:
                service.submit(request, self.headers.get("x-tenant", self.client_address[0]))
            except Busy as busy:
                self.send_response(429 if busy.seconds else 400)
                if busy.seconds:
                    self.send_header("retry-after", str(busy.seconds))
                self.end_headers()
                return
            events = service.events(request, tokenizer.piece)
            try:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for data in events:
                    self.wfile.write(data)
                    self.wfile.flush()
            except OSError:
                pass  # the reader has hung up
            finally:
                request.gone = True
                events.close()

        def asked(self):
            length = int(self.headers["content-length"])
            if not 0 < length < 1 << 20:
                raise ValueError(f"a body has 1 to {1 << 20} bytes, got {length}")
            asked = json.loads(self.rfile.read(length))
            n = int(asked.get("max_tokens", 64))
            if n < 1:
                raise ValueError(f"max_tokens is at least 1, got {n}")
            sampler = Sampler(float(asked.get("temperature", 0)), seed=int(asked.get("seed", 0)))
            request = Request(tokenizer.encode_prompt(str(asked["prompt"])), n, tokenizer.eos)
            request.choose = lambda row: sampler.next(row, request.history)
            return request

        def log_message(self, *words):
            """Say nothing for each request."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
