#!/usr/bin/env python3
"""A relay from Purser's events to mail: takes signed events over HTTP, and sends each as a mail. See events.md.

Set RELAY_SECRET, MAIL_FROM and MAIL_TO; RELAY_LISTEN (127.0.0.1:8025) and SMTP_SERVER (127.0.0.1:25) have defaults.
It needs Python 3.8 and nothing else.
"""

import base64
import hashlib
import hmac
import json
import os
import smtplib
import time
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BODY_BYTES_MAX = 64 * 1024
AGE_SECONDS_MAX = 300

secret = os.environ["RELAY_SECRET"]
key = base64.b64decode(secret[6:]) if secret.startswith("whsec_") else secret.encode()
smtp_host, smtp_port = os.environ.get("SMTP_SERVER", "127.0.0.1:25").rsplit(":", 1)


def is_signed(headers, body):
    """Whether this body carries a signature with our secret, made within the last five minutes."""
    sent_at = headers.get("webhook-timestamp", "")
    if not sent_at.isdigit() or abs(time.time() - int(sent_at)) > AGE_SECONDS_MAX:
        return False
    signed = f"{headers.get('webhook-id', '')}.{sent_at}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(expected, it) for it in headers.get("webhook-signature", "").split())


def line(value):
    """A value as one visible line: a tenant wrote some of them, and a line of theirs would look like another value."""
    return " ".join("".join(it if it.isprintable() else " " for it in str(value)).split())


def send(event):
    data = event["data"]
    about = line(data.get("wallet_name") or data.get("account_name") or data.get("upstream") or "")
    mail = EmailMessage()
    mail["From"], mail["To"] = os.environ["MAIL_FROM"], os.environ["MAIL_TO"]
    mail["Subject"] = f"[purser] {event['type']} {about}".strip()
    mail["Message-ID"] = f"<{event['id']}@purser>"  # An event that is sent again is the same mail.
    mail.set_content("\n".join(f"{name}: {line(value)}" for name, value in data.items()) + "\n")
    with smtplib.SMTP(smtp_host, int(smtp_port), timeout=8) as server:
        server.send_message(mail)


class Relay(BaseHTTPRequestHandler):
    timeout = 10

    def do_POST(self):
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            return self.answer(413)
        body = self.rfile.read(int(length))
        if not is_signed(self.headers, body):
            return self.answer(401)
        try:
            send(json.loads(body))
        except (OSError, smtplib.SMTPException) as error:
            print(f"the mail server did not take it: {error}", flush=True)
            return self.answer(503)  # Purser sends it again.
        self.answer(204)

    def answer(self, status):
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


host, port = os.environ.get("RELAY_LISTEN", "127.0.0.1:8025").rsplit(":", 1)
server = ThreadingHTTPServer((host, int(port)), Relay)
print(f"listening on {host}:{server.server_address[1]}", flush=True)
server.serve_forever()
