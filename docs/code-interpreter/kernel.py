"""Runs Python for E2B's code interpreter, as its SDKs ask for it over HTTP: contexts that keep their variables, each an IPython kernel.

It needs Debian's python3-ipykernel, and listens on loopback, where Purser reaches a sandbox's ports.
"""

import json
import os
import select
import socket
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty

from jupyter_client.manager import KernelManager

PORT = 49999  # The SDKs' own.
READY_SECONDS = 60
POLL_SECONDS = 0.2
BODY_BYTES_MAX = 16 * 1024 * 1024
FORMATS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "javascript",
}


class Refused(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Context:
    """One kernel. Runs of code wait for each other; a restart waits for none."""

    def __init__(self, cwd):
        self.id = str(uuid.uuid4())
        self.cwd = cwd
        self.kernel = KernelManager()
        self.kernel.start_kernel(cwd=cwd)
        self.client = self.kernel.blocking_client()
        self.client.start_channels()
        self.starts = 1
        self.heard = 0  # Of which start the kernel has answered.
        self.is_over = False
        self.turn = threading.Lock()
        self.starting = threading.Lock()
        with self.turn:
            self._hear()

    def describe(self):
        return {"id": self.id, "language": "python", "cwd": self.cwd}

    def restart(self):
        self._start()
        with self.turn:
            self._hear()

    def end(self):
        self.is_over = True
        self.kernel.shutdown_kernel(now=True)
        with self.turn:
            self.client.stop_channels()

    def execute(self, code, variables, send, has_left):
        """Runs code and sends what comes of it. Interrupts it when its client leaves."""
        while not self.turn.acquire(timeout=POLL_SECONDS):
            if has_left():
                return
        try:
            if self.is_over:
                send(ENDED)
                return
            if not self.kernel.is_alive():
                self._start()
            self._hear()
            starts = self.starts
            if variables:
                self._run(_SET % json.dumps(json.dumps(variables)), starts, silent=True)
            try:
                self._run(code, starts, send, has_left)
            finally:
                if variables:
                    self._run(_UNSET, starts, silent=True)
        finally:
            self.turn.release()

    def _start(self):
        with self.starting:
            self.starts += 1  # The run that has the turn sees it, and gives up.
            self.kernel.restart_kernel(now=True)

    def _hear(self):
        """Waits until the kernel answers: what is sent before that may be lost."""
        with self.starting:
            if self.heard != self.starts:
                self.client.wait_for_ready(timeout=READY_SECONDS)
                self.heard = self.starts

    def _run(self, code, starts, send=lambda _: None, has_left=lambda: False, silent=False):
        run = self.client.execute(code, silent=silent, store_history=not silent, allow_stdin=False)
        has_begun = is_interrupted = False
        while True:
            # Before it has begun, the kernel takes no notice of an interrupt, and would run it to its end.
            if has_begun and not is_interrupted and has_left():
                is_interrupted = True
                self.kernel.interrupt_kernel()
            try:
                message = self.client.get_iopub_msg(timeout=POLL_SECONDS)
            except Empty:
                if self.starts != starts or self.is_over or not self.kernel.is_alive():
                    send(ENDED)
                    return
                continue
            if message["parent_header"].get("msg_id") != run:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                send({"type": content["name"], "text": content["text"]})
            elif kind in ("display_data", "execute_result"):
                send(_result(content["data"], kind == "execute_result"))
            elif kind == "error":
                send(_error(content["ename"], content["evalue"], "\n".join(content["traceback"])))
            elif kind == "execute_input":
                has_begun = True
                send({"type": "number_of_executions", "execution_count": content["execution_count"]})
            elif kind == "status" and content["execution_state"] == "idle":
                break
        try:
            self.client.get_shell_msg(timeout=POLL_SECONDS)  # All of it has been heard already.
        except Empty:
            pass


# The variables of one run; those that they hide come back after it. No name of the code's is touched.
_SET = """(lambda os, new: (setattr(os, '_purser_hidden', {name: os.environ.get(name) for name in new}), os.environ.update(new)))(
__import__('os'), __import__('json').loads(%s))"""
_UNSET = """(lambda os: [os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
for name, value in os.__dict__.pop('_purser_hidden', {}).items()])(__import__('os'))"""


def _error(name, value, traceback=""):
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


ENDED = _error("KernelEnded", "The kernel ended, with all its variables.")


def _result(data, is_main):
    result = {"type": "result", "is_main_result": is_main}
    result.update({FORMATS.get(name, name): value for name, value in data.items()})
    text = result.get("text", "")
    if len(text) > 1 and text[0] == text[-1] == "'":
        result["text"] = text[1:-1]  # As E2B's own server shows a string.
    return result


class Contexts:
    """All contexts by their ids. The first is that of code that names none."""

    def __init__(self):
        self.all = {}
        self.turn = threading.Lock()
        self.default = None

    def open(self, cwd=None):
        cwd = os.path.expanduser(cwd or "~")
        if not os.path.isdir(cwd):
            raise Refused(400, f"cwd: there is no directory {cwd}.")
        context = Context(cwd)
        self.all[context.id] = context
        return context

    def find(self, id):
        if id is None:
            with self.turn:
                if self.default not in self.all:
                    self.default = self.open().id
                return self.all[self.default]
        if id not in self.all:
            raise Refused(404, "There is no such context.")
        return self.all[id]

    def remove(self, id):
        context = self.find(id)
        self.all.pop(id, None)
        context.end()


CONTEXTS = Contexts()


def refuse_other(language):
    if language is not None and language.lower() not in ("python", "python3"):
        raise Refused(400, f"language: there is no kernel for {language} in this image, only for Python.")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
                if len(data) > BODY_BYTES_MAX:
                    break
            else:
                self.rfile.readline()
        else:
            length = int(self.headers.get("Content-Length", "0"))
            data = self.rfile.read(min(length, BODY_BYTES_MAX + 1))
        if len(data) > BODY_BYTES_MAX:
            self.close_connection = True
            raise Refused(413, "The code is too long.")
        try:
            body = json.loads(data or b"{}")
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Refused(400, "The body must be a JSON object.")
        return body

    def serve(self, call):
        try:
            call()
        except Refused as refused:
            self.answer(refused.status, {"code": refused.status, "message": str(refused)})
        except ConnectionError:
            self.close_connection = True  # Its client has left.
        except Exception as error:
            self.answer(500, {"code": 500, "message": f"{type(error).__name__}: {error}"})

    def do_GET(self):
        def call():
            if self.path == "/health":
                self.answer(200)
            elif self.path == "/contexts":
                self.answer(200, [it.describe() for it in list(CONTEXTS.all.values())])
            else:
                raise Refused(404, "There is nothing here.")

        self.serve(call)

    def do_DELETE(self):
        def call():
            _, _, id = self.path.rpartition("/contexts/")
            CONTEXTS.remove(id)
            self.answer(204)

        self.serve(call)

    def do_POST(self):
        def call():
            body = self.body()
            if self.path == "/execute":
                self.execute(body)
            elif self.path == "/contexts":
                refuse_other(body.get("language"))
                self.answer(200, CONTEXTS.open(body.get("cwd")).describe())
            elif self.path.startswith("/contexts/") and self.path.endswith("/restart"):
                CONTEXTS.find(self.path.split("/")[2]).restart()
                self.answer(204)
            else:
                raise Refused(404, "There is nothing here.")

        self.serve(call)

    def execute(self, body):
        code = body.get("code")
        if not isinstance(code, str):
            raise Refused(400, "code: must be a string.")
        variables = body.get("env_vars") or {}
        if not isinstance(variables, dict) or not all(isinstance(it, str) for it in variables.values()):
            raise Refused(400, "env_vars: must be an object of strings.")
        refuse_other(body.get("language"))
        context = CONTEXTS.find(body.get("context_id"))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        left = threading.Event()

        def send(message):
            line = json.dumps(message).encode() + b"\n"
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            except ConnectionError:
                left.set()

        def has_left():
            # The end of the client's side. It sends nothing else before the answer is over.
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                left.set()
            return left.is_set()

        try:
            context.execute(code, variables, send, has_left)
        except Exception as error:  # The answer has begun: it can tell, and no status can.
            send(_error(type(error).__name__, str(error)))
        if left.is_set():
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    # The first code does not wait for a kernel; a failure is told to it.
    threading.Thread(target=CONTEXTS.find, args=(None,), daemon=True).start()
    server.serve_forever()
