"""The client of a Purser wallet, for the program that spends it.

>>> from purser import wallet
>>> w = wallet()                      # reads SVC_BROKER_URL and SVC_BROKER_TOKEN
>>> with w.rent(cpus=2, memory_gib=4, minutes=10) as m:
...     m.copy("project", "project")
...     print(m.run("python3 project/main.py").stdout)

One file, Python 3.9 or newer, the standard library alone. Money is a ``Decimal``. A call that costs money has a key, with which it
is repeated until its outcome is known: it is paid once. ``run`` and ``start`` are never repeated once they were sent.
"""

from __future__ import annotations

import base64
import codecs
import http.client
import json
import os
import posixpath
import ssl
import stat
import sys
import tarfile
import tempfile
import time
import urllib.parse
import uuid
from decimal import Decimal
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Union

__version__ = "0.2.0"
__all__ = [
    "ConnectionLost",
    "FundsHeld",
    "InsufficientFunds",
    "Machine",
    "OperationUncertain",
    "Port",
    "Process",
    "PurserError",
    "Result",
    "Wallet",
    "wallet",
]

_TIMEOUT = 75  # Seconds without a byte after which an answer is lost; a stream says something every 15.
_PATIENCE = 600  # Seconds for which a call is repeated while its outcome is not known.
_PAUSE_MAX = 20
_PART = 8 * 1024 * 1024
_PIECE = 64 * 1024
_JSON = "application/json"
_BYTES = "application/octet-stream"
_TAR = "application/x-tar"
_EVENTS = "text/event-stream"
# Refusals after which the same request may be sent again: nothing was done, or nobody knows and the key tells.
_TEMPORARY = {"rate_limited", "read_only", "request_timeout", "idempotency_in_progress", "operation_uncertain"}
# Refusals of an offer after which another one may have room. Nothing was charged.
_ELSEWHERE = {"capacity_unavailable", "provider_unavailable", "offer_not_found", "lease_limit_exceeded", "invalid_request"}


class PurserError(Exception):
    """A refusal of Purser. ``code`` is for programs, ``status`` the HTTP status, ``request_id`` is in the server's log.

    ``key`` is the Idempotency-Key of a call that costs money: where its outcome is not known, repeat it only with that.
    """

    key: Optional[str] = None

    def __init__(self, code: str, message: str, status: int = 0, request_id: Optional[str] = None):
        super().__init__(message)
        self.code = code
        self.status = status
        self.request_id = request_id
        self.retry_after: Optional[float] = None


class InsufficientFunds(PurserError):
    """402: the wallet cannot cover the call."""


class FundsHeld(InsufficientFunds):
    """402 ``funds_held``: the wallet could cover it once what is in flight has settled. Try again later."""


class OperationUncertain(PurserError):
    """The outcome of a paid call is still not known."""


class ConnectionLost(PurserError):
    """No answer, or a part of one: what was asked may have been done."""


def _refusal(status: int, body: Any, headers: Any) -> PurserError:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        return _lost(f"the answer {status} is none of Purser's")
    code = error["code"]
    kinds = {"funds_held": FundsHeld, "operation_uncertain": OperationUncertain}
    kind = kinds.get(code, InsufficientFunds if status == 402 else PurserError)
    refusal = kind(code, str(error.get("message", code)), status, body.get("request_id"))
    try:
        refusal.retry_after = float(headers.get("retry-after", ""))
    except ValueError:
        pass
    return refusal


def _lost(reason: object) -> ConnectionLost:
    return ConnectionLost("connection_lost", f"The answer was lost: {reason}")


class _Client:
    """Sends requests with one token."""

    def __init__(self, url: str, token: str, patience: float):
        self.url = url.rstrip("/")
        self.token = token
        self.patience = patience
        self._parts = urllib.parse.urlsplit(self.url)
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname:
            raise ValueError(f"no URL of a server: {url!r}")

    def open(self, method: str, path: str, body: Any, headers: Dict[str, str], timeout: float) -> http.client.HTTPResponse:
        """Sends one request. The answer has a status and headers; its body is still to be read."""
        host, port = self._parts.hostname, self._parts.port
        if self._parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=timeout, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout)
        headers = {"Authorization": f"Bearer {self.token}", "Connection": "close", **headers}
        try:
            try:
                connection.request(method, self._parts.path + path, body=body, headers=headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # It may have refused before it had read all.
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _lost(error or type(error).__name__) from error
        # The response reads from a file of its own: the connection ends with it.
        response._purser_connection = connection  # type: ignore[attr-defined]
        return response

    def read(self, response: http.client.HTTPResponse, size: Optional[int] = None) -> bytes:
        try:
            return response.read() if size is None else response.read(size)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _lost(error or type(error).__name__) from error

    def body(self, response: http.client.HTTPResponse) -> Any:
        """The JSON of an answer. Raises for a refusal, and for what is no whole answer."""
        try:
            text = self.read(response)
            try:
                body = json.loads(text)
            except ValueError as error:
                raise _lost(f"a part of it came, with the status {response.status}") from error
            if not 200 <= response.status < 300:
                raise _refusal(response.status, body, response.headers)
            if not isinstance(body, dict):
                raise _lost("it is no object")
            return body
        finally:
            response.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: Optional[str] = None,
        repeats: bool = True,
        timeout: float = _TIMEOUT,
        accept: str = _JSON,
        send: Optional[Callable[[], Any]] = None,
        kind: str = _JSON,
        use: Optional[Callable[[http.client.HTTPResponse], Any]] = None,
        until: frozenset = frozenset(),
    ) -> Any:
        """Asks until there is an answer. What must not be done twice has a ``key``, or does not repeat a lost answer."""
        headers = {"Accept": accept}
        if key is not None:
            headers["Idempotency-Key"] = key
        if body is not None:
            send = lambda text=json.dumps(body).encode(): text  # noqa: E731
        if send is not None:
            headers["Content-Type"] = kind
        ends = time.monotonic() + self.patience
        pause = 0.25
        while True:
            try:
                content = send() if send is not None else None
                if hasattr(content, "seek"):
                    headers["Content-Length"] = str(content.seek(0, os.SEEK_END))
                    content.seek(0)
                response = self.open(method, path, content, headers, timeout)
                if use is None or not 200 <= response.status < 300:
                    return self.body(response)
                try:
                    return use(response)
                finally:
                    response.close()
            except PurserError as error:
                error.key = key
                again = error.code in _TEMPORARY or error.code in until or (repeats and isinstance(error, ConnectionLost))
                if isinstance(error, OperationUncertain) and not repeats:
                    again = False
                if not again or time.monotonic() + pause > ends:
                    raise
                time.sleep(min(_PAUSE_MAX, max(pause, error.retry_after or 0)))
                pause = min(_PAUSE_MAX, pause * 2)


def wallet(url: Optional[str] = None, token: Optional[str] = None, *, patience: float = _PATIENCE) -> "Wallet":
    """The wallet of this program: from SVC_BROKER_URL and SVC_BROKER_TOKEN, unless they are given.

    ``patience`` is how many seconds a call is repeated while its outcome is not known.
    """
    url = url or os.environ.get("SVC_BROKER_URL")
    token = token or os.environ.get("SVC_BROKER_TOKEN")
    if not url or not token:
        raise ValueError("SVC_BROKER_URL and SVC_BROKER_TOKEN are not set, and no url and token were given")
    return Wallet(_Client(url, token, patience))


def _key() -> str:
    return f"sdk-{uuid.uuid4()}"


def _seconds(minutes: Union[int, float, Decimal]) -> int:
    return int(Decimal(str(minutes)) * 60)


class Wallet:
    """A wallet. As a context it is closed at the end of the block."""

    def __init__(self, client: _Client, id: Optional[str] = None):
        self._client = client
        self.id = id

    def __repr__(self) -> str:
        return f"<Wallet {self.id or self._client.url}>"

    def __enter__(self) -> "Wallet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def budget(self) -> Dict[str, Any]:
        """What it may spend, has spent, holds and has delegated. The amounts are ``Decimal``."""
        return _with_money(self._client.ask("GET", "/v1/budget"))

    @property
    def available(self) -> Decimal:
        """What new calls may spend, in US dollars."""
        return self.budget()["available_usd"]

    def offers(self) -> List[Dict[str, Any]]:
        """The machines that can be rented."""
        return [_with_money(it) for it in self._client.ask("GET", "/v1/compute/offers")["offers"]]

    def models(self) -> List[Dict[str, Any]]:
        """The models that can be asked."""
        return self._client.ask("GET", "/v1/models")["data"]

    def machines(self) -> List["Machine"]:
        """Its machines and those of its children, the newest first."""
        return [Machine(self._client, it) for it in self._client.ask("GET", "/v1/compute/list")["resources"]]

    def machine(self, id: str) -> "Machine":
        """A machine by its id."""
        return Machine(self._client, self._client.ask("POST", "/v1/compute/status", {"id": id}))

    def snapshots(self) -> List[Dict[str, Any]]:
        """Its snapshots and those of its children, the newest first."""
        return self._client.ask("GET", "/v1/compute/snapshots")["snapshots"]

    def delete_snapshot(self, id: str) -> Dict[str, Any]:
        """Deletes a snapshot, which costs no further day."""
        return self._client.ask("POST", "/v1/compute/snapshot/delete", {"snapshot_id": id})

    def rent(
        self,
        cpus: Union[int, float] = 1,
        memory_gib: Union[int, float] = 1,
        minutes: Union[int, float] = 10,
        *,
        gpu: Optional[str] = None,
        gpus: Optional[int] = None,
        disk_gb: Optional[int] = None,
        provider: Optional[str] = None,
        wait_seconds: int = 900,
        snapshot: Optional[str] = None,
    ) -> "Machine":
        """Rents the cheapest machine that fits, and waits until it runs. As a context it is stopped at the end of the block.

        All of the time is paid in advance, and stopping early refunds nothing. With ``snapshot`` it has the disk of that.
        """
        if snapshot is not None and provider is None:
            provider = next((it["provider"] for it in self.snapshots() if it["snapshot_id"] == snapshot), None)
        wanted = {"cpus": cpus, "memory_gib": memory_gib, "gpu": gpu, "gpus": gpus if gpus is not None else int(gpu is not None)}
        wanted.update(seconds=_seconds(minutes), disk_gb=disk_gb, provider=provider)
        failed: PurserError = PurserError("offer_not_found", "No offer that is available fits.", 404)
        for order in _fitting(self.offers(), wanted):
            try:
                return self._rent(order, wait_seconds, snapshot)
            except PurserError as error:
                if error.code not in _ELSEWHERE:
                    raise
                failed = error
        raise failed

    def _rent(self, order: Dict[str, Any], wait_seconds: int, snapshot: Optional[str]) -> "Machine":
        ends = time.monotonic() + wait_seconds
        # Without wait_seconds, a create that finds no machine is refused at once, and another offer is tried.
        query = [f"wait_seconds={max(0, wait_seconds)}"] if wait_seconds < 30 else []
        query += [] if snapshot is None else [f"snapshot={snapshot}"]
        path = "/v1/compute/create" + ("?" + "&".join(query) if query else "")
        made = self._client.ask("POST", path, order, key=_key(), timeout=30 + _TIMEOUT)
        machine = Machine(self._client, made)
        try:
            while machine.status in ("provisioning", "unknown") and time.monotonic() < ends:
                time.sleep(1)
                machine.refresh()
            if machine.status == "running":
                return machine
            reason = machine.data.get("end_reason") or machine.data.get("status_reason") or machine.status
            raise PurserError("provider_unavailable", f"The machine {machine.id} does not run: {reason}.", 503)
        except BaseException:
            machine.stop()
            raise

    def delegate(self, name: str, usd: Union[str, int, Decimal], minutes: Union[int, float] = 60) -> "Wallet":
        """Hands a part of the budget to a wallet of its own, for a sub-agent. As a context it is closed at the end."""
        if isinstance(usd, float):
            raise TypeError('usd: give an exact amount, as "0.25" or Decimal("0.25"), not a float')
        body = {"name": name, "budget_usd": str(usd), "expires_in_seconds": _seconds(minutes)}
        made = self._client.ask("POST", "/v1/run/wallets", body, key=_key())
        env = made["env"]
        return Wallet(_Client(env["SVC_BROKER_URL"], env["SVC_BROKER_TOKEN"], self._client.patience), made["id"])

    def env(self, models: Optional[List[str]] = None, max_price_usd: Union[str, Decimal, None] = None) -> Dict[str, str]:
        """The environment of a program that spends it: for this module, and for clients of OpenAI and Anthropic.

        ``models`` and ``max_price_usd`` (of one request) restrict its key for models.
        """
        body: Dict[str, Any] = {}
        if models is not None:
            body["models"] = models
        if max_price_usd is not None:
            body["max_price_usd"] = str(max_price_usd)
        key = self._client.ask("POST", "/v1/router/key", body)
        env = {
            "SVC_BROKER_URL": self._client.url,
            "SVC_BROKER_TOKEN": self._client.token,
            "OPENAI_BASE_URL": key["base_url"],
            "OPENAI_API_KEY": key["api_key"],
            "ANTHROPIC_BASE_URL": key["base_url"],
            "ANTHROPIC_AUTH_TOKEN": key["api_key"],
        }
        chats = [it["id"] for it in self.models() if it["max_output_tokens"] > 0]
        first = next((it for it in (chats if models is None else models) if it in chats), None)
        if first is not None:
            env.update(OPENAI_MODEL=first, ANTHROPIC_MODEL=first)
        return env

    def close(self) -> None:
        """Closes it: ends its machines, and returns what is left. Waits until all of it is gone."""
        self._client.ask("POST", "/v1/run/close", until=frozenset({"cleanup_pending"}))


class Result(NamedTuple):
    """What a command said. After signal n ``exit_code`` is 128 + n."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False


class Port(NamedTuple):
    """A link with which a browser opens a port of a machine: good once, for five minutes."""

    url: str
    expires_at: int


class Process:
    """A command in the background of a machine."""

    def __init__(self, machine: "Machine", data: Dict[str, Any]):
        self._machine = machine
        self.data = data
        self.id: str = data["process_id"]

    def __repr__(self) -> str:
        return f"<Process {self.id}>"

    def _ask(self, verb: str, **body: Any) -> Dict[str, Any]:
        asked = {"id": self._machine.id, "process_id": self.id, **body}
        self.data = self._machine._client.ask("POST", f"/v1/compute/process/{verb}", asked)
        return self.data

    @property
    def exit_code(self) -> Optional[int]:
        """Its exit code; None while it runs."""
        return self._ask("log", length=1)["exit_code"]

    def log(self, offset: int = 0) -> str:
        """What it has said from a byte on, or below 0 from the end; at most 1 MiB."""
        return self._ask("log", offset=offset)["output"]

    def kill(self) -> None:
        """Ends it, with all that it started."""
        self._ask("kill")


class Machine:
    """A rented machine. As a context it is stopped at the end of the block."""

    def __init__(self, client: _Client, data: Dict[str, Any]):
        self._client = client
        self._take(data)

    def _take(self, data: Dict[str, Any]) -> "Machine":
        self.data = _with_money(data)
        self.id: str = data["id"]
        self.status: str = data["status"]
        self.expires_at: float = data["expires_at"]
        return self

    def __repr__(self) -> str:
        return f"<Machine {self.id} {self.status}>"

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def refresh(self) -> "Machine":
        """Reads its state again."""
        return self._take(self._client.ask("POST", "/v1/compute/status", {"id": self.id}))

    def stop(self) -> None:
        """Ends it. What was paid is not refunded."""
        self._take(self._client.ask("POST", "/v1/compute/stop", {"id": self.id}))

    def extend(self, minutes: Union[int, float]) -> "Machine":
        """Buys more time, which is paid in advance."""
        body = {"id": self.id, "additional_seconds": _seconds(minutes)}
        return self._take(self._client.ask("POST", "/v1/compute/extend", body, key=_key()))

    def keep(self, max_minutes: Union[int, float] = 60, step_minutes: Union[int, float] = 5) -> "Machine":
        """Extends it by steps while it is busy, at most this long in all; with 0 no longer."""
        seconds = _seconds(max_minutes)
        body = {"id": self.id, "extend_seconds": min(_seconds(step_minutes), seconds), "max_seconds": seconds}
        if seconds == 0:
            del body["max_seconds"]
        return self._take(self._client.ask("POST", "/v1/compute/keep", body, key=_key()))

    def pause(self) -> "Machine":
        """Stops what runs in it and keeps the paid time, until ``resume`` or the end of its wallet."""
        return self._take(self._client.ask("POST", "/v1/compute/pause", {"id": self.id}))

    def resume(self) -> "Machine":
        """Continues what ``pause`` stopped."""
        return self._take(self._client.ask("POST", "/v1/compute/resume", {"id": self.id}))

    def snapshot(self) -> str:
        """Keeps its disk, paid by the day, and returns the id of that, for ``rent(snapshot=ID)``."""
        return self._client.ask("POST", "/v1/compute/snapshot", {"id": self.id}, key=_key())["snapshot_id"]

    def run(
        self,
        command: str,
        *,
        stream: bool = False,
        on_stdout: Optional[Callable[[str], Any]] = None,
        on_stderr: Optional[Callable[[str], Any]] = None,
        cwd: Optional[str] = None,
        env: Optional[Dict[str, str]] = None,
        stdin: Union[str, bytes, None] = None,
        timeout: int = 300,
    ) -> Result:
        """Runs a command (``sh -c``) to its end. With ``stream`` it prints what the command says as it comes.

        It is never sent twice: where the answer is lost, ``ConnectionLost`` says so.
        """
        body = _command(self.id, command, cwd, env)
        body["timeout"] = timeout
        if isinstance(stdin, bytes):
            body["stdin_base64"] = base64.b64encode(stdin).decode()
        elif stdin is not None:
            body["stdin"] = stdin
        told = {
            "stdout": on_stdout or (sys.stdout.write if stream else None),
            "stderr": on_stderr or (sys.stderr.write if stream else None),
        }
        if not any(told.values()):
            said = self._client.ask("POST", "/v1/compute/exec", body, repeats=False, timeout=timeout + _TIMEOUT)
            return _result(said)

        def follow(response: http.client.HTTPResponse) -> Result:
            for name, data in _events(self._client, response):
                if name == "exit":
                    return _result(data)
                if name == "error":
                    raise _refusal(response.status, data, {})
                tell = told.get(name)
                if tell:
                    tell(data["text"])
                    if stream and tell in (sys.stdout.write, sys.stderr.write):
                        getattr(sys, name).flush()
            raise _lost("the stream ended before the command")

        return self._client.ask("POST", "/v1/compute/exec", body, repeats=False, accept=_EVENTS, use=follow)

    def start(self, command: str, *, cwd: Optional[str] = None, env: Optional[Dict[str, str]] = None) -> Process:
        """Starts a command in the background. It is never sent twice."""
        body = _command(self.id, command, cwd, env)
        return Process(self, self._client.ask("POST", "/v1/compute/process/start", body, repeats=False))

    def port(self, port: int) -> Port:
        """A link with which a browser opens this port."""
        made = self._client.ask("POST", "/v1/compute/port", {"id": self.id, "port": port})
        return Port(made["url"], made["expires_at"])

    def copy(self, local: Union[str, os.PathLike], remote: str) -> None:
        """Copies a file, or a tree with all that is in it, to a path of the machine."""
        local = os.fspath(local)
        query = urllib.parse.urlencode({"id": self.id, "path": remote})
        is_tree = os.path.isdir(local)
        with tempfile.TemporaryFile() if is_tree else open(local, "rb") as content:
            if is_tree:
                _pack(local, content)
            kind = _TAR if is_tree else _BYTES
            self._client.ask("POST", f"/v1/compute/upload?{query}", send=lambda: content, kind=kind, timeout=600)

    def fetch(self, remote: str, local: Union[str, os.PathLike]) -> None:
        """Copies a file, or a tree, from a path of the machine.

        Links that lead out of the tree, or go up again after a name, are left out.
        """
        local = os.fspath(local)
        facts = self._client.ask("POST", "/v1/compute/files", {"id": self.id, "path": remote})
        if facts["type"] == "directory" or "entries" in facts:
            self._fetch_tree(remote, local)
        else:
            self._fetch_file(remote, local, int(facts["mode"], 8) & 0o777)

    def _fetch_file(self, remote: str, local: str, mode: int) -> None:
        def part(response: http.client.HTTPResponse) -> Any:
            size, length = response.headers.get("x-purser-file-size"), response.headers.get("content-length")
            if size is None or length is None or not size.isdigit() or not length.isdigit():
                raise _lost("a part of it came")
            content = self._client.read(response)
            if len(content) != int(length):
                raise _lost("a part of it came")
            return content, int(size)

        folder = os.path.dirname(local) or "."
        handle, fresh = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                size = None
                while size is None or file.tell() < size:
                    body = {"id": self.id, "path": remote, "offset": file.tell(), "length": _PART}
                    content, size = self._client.ask("POST", "/v1/compute/download", body, accept=_BYTES, use=part)
                    if not content:
                        break
                    file.write(content)
            os.chmod(fresh, mode)
            os.replace(fresh, local)
        except BaseException:
            os.unlink(fresh)
            raise

    def _fetch_tree(self, remote: str, local: str) -> None:
        with tempfile.TemporaryFile() as archive:

            def save(response: http.client.HTTPResponse) -> None:
                if response.headers.get("content-type") != _TAR or not response.chunked:
                    raise _lost("it is no archive")
                archive.seek(0)
                archive.truncate()
                while True:
                    piece = self._client.read(response, _PIECE)
                    if not piece:
                        return
                    archive.write(piece)

            body = {"id": self.id, "path": remote}
            self._client.ask("POST", "/v1/compute/download", body, accept=_TAR, use=save)
            archive.seek(0)
            _unpack(archive, local)


def _with_money(data: Dict[str, Any]) -> Dict[str, Any]:
    return {
        name: Decimal(value)
        if name.endswith("_usd") and isinstance(value, str)
        else _with_money(value)
        if isinstance(value, dict)
        else value
        for name, value in data.items()
    }


def _fitting(offers: List[Dict[str, Any]], wanted: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The orders that fit, the cheapest first; those whose size nobody knows come last."""
    found = []
    for offer in offers:
        spec, size, price = dict(offer["spec"]), offer.get("size"), offer["price_hourly_usd"]
        seconds = wanted["seconds"]
        if not offer["available"] or not offer["min_seconds"] <= seconds <= offer["max_seconds"]:
            continue
        if wanted["provider"] not in (None, offer["provider"]):
            continue
        if size and (size["cpus"] < wanted["cpus"] or size["memory_gib"] < wanted["memory_gib"]):
            continue
        if "cpus" in spec:
            if spec["gpu"] != wanted["gpu"] or (size and size["gpus"] < wanted["gpus"]):
                continue
            units = offer.get("unit_prices")
            if units:
                cpu, memory = units["cpu_hourly_usd"], units["memory_gib_hourly_usd"]
                base = price - Decimal(str(spec["cpus"])) * cpu - Decimal(str(spec["memory_gib"])) * memory
                rest = base / spec["gpus"] * wanted["gpus"] if spec["gpus"] else base
                price = rest + Decimal(str(wanted["cpus"])) * cpu + Decimal(str(wanted["memory_gib"])) * memory
            spec.update(cpus=wanted["cpus"], memory_gib=wanted["memory_gib"], gpus=wanted["gpus"])
        elif wanted["gpu"] is not None and wanted["gpu"] != spec.get("chip"):
            continue
        if wanted["disk_gb"] is not None and "disk_gb" in spec:
            if spec["disk_gb"] < wanted["disk_gb"]:
                continue
            spec["disk_gb"] = wanted["disk_gb"]
        spec["max_seconds"] = seconds
        found.append((size is None, price, len(found), {"provider": offer["provider"], "spec": spec}))
    return [order for *_, order in sorted(found, key=lambda it: it[:3])]


def _command(id: str, command: str, cwd: Optional[str], env: Optional[Dict[str, str]]) -> Dict[str, Any]:
    body: Dict[str, Any] = {"id": id, "command": command}
    if cwd is not None:
        body["cwd"] = cwd
    if env is not None:
        body["env"] = env
    return body


def _result(said: Dict[str, Any]) -> Result:
    truncated = said["stdout_truncated"] or said["stderr_truncated"]
    return Result(said["exit_code"], said["stdout"], said["stderr"], said["timed_out"], truncated)


def _events(client: _Client, response: http.client.HTTPResponse) -> Iterator[Any]:
    """The named events of a stream, each when all of it has come."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while True:
        try:
            piece = response.read1(_PIECE)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _lost(error or type(error).__name__) from error
        if not piece:
            return
        rest += decoder.decode(piece)
        *events, rest = rest.split("\n\n")
        for event in events:
            fields = dict(line.split(": ", 1) for line in event.split("\n") if ": " in line and not line.startswith(":"))
            if "event" in fields and "data" in fields:
                try:
                    yield fields["event"], json.loads(fields["data"])
                except ValueError as error:
                    raise _lost("an event cannot be read") from error


def _pack(local: str, content: Any) -> None:
    def plain(it: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
        if not (it.isreg() or it.isdir() or it.issym() or it.islnk()):
            return None
        it.uid = it.gid = 0
        it.uname = it.gname = ""
        it.mode = stat.S_IMODE(it.mode) & 0o777
        return it

    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(local, arcname=".", filter=plain)


def _unpack(content: Any, local: str) -> None:
    """Unpacks an archive of a machine that is not trusted: nothing is written outside of ``local``."""
    os.makedirs(local, exist_ok=True)
    root = os.path.realpath(local)

    def leaves(path: str) -> bool:
        return path == ".." or path.startswith(("/", "../"))

    def climbs(link: str) -> bool:
        # A name may be a link: the way up after it begins wherever that leads.
        parts = [it for it in link.split("/") if it not in ("", ".")]
        return any(it == ".." != before for before, it in zip(parts, parts[1:]))

    def target(name: str) -> Optional[str]:
        path = posixpath.normpath(name)
        if path == ".":
            return None
        parent = os.path.realpath(os.path.join(root, posixpath.dirname(path)))
        if leaves(path) or os.path.commonpath([root, parent]) != root:
            raise PurserError("unsafe_archive", f"The archive has an entry outside of its directory: {name!r}")
        os.makedirs(parent, exist_ok=True)
        return os.path.join(parent, posixpath.basename(path))

    try:
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for member in archive:
                if member.size < 0:
                    raise _lost("the archive cannot be read")
                path = target(member.name)
                if path is None:
                    continue
                if os.path.islink(path) or (not member.isdir() and os.path.isfile(path)):
                    os.unlink(path)
                if member.isdir():
                    os.makedirs(path, exist_ok=True)
                elif member.issym():
                    here = os.path.relpath(os.path.dirname(path), root)  # By way of other links, it may be elsewhere.
                    leads = posixpath.normpath(posixpath.join(here, member.linkname))
                    if not leaves(leads) and not climbs(member.linkname):
                        os.symlink(member.linkname, path)
                elif member.islnk():
                    linked = target(member.linkname)
                    if linked is not None and os.path.isfile(linked) and not os.path.islink(linked):
                        os.link(linked, path)
                elif member.isreg():
                    source = archive.extractfile(member)
                    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode & 0o777)
                    with os.fdopen(handle, "wb") as file:
                        while source:
                            piece = source.read(_PIECE)
                            if not piece:
                                break
                            file.write(piece)
                        if file.tell() != member.size:
                            raise _lost("the archive is cut")
    except tarfile.TarError as error:
        raise _lost(f"the archive cannot be read: {error}") from error
