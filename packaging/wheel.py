"""Packs sdk/python as a wheel: wheel.py DIRECTORY VERSION SECONDS. Its content decides its bytes, and no build tool is fetched."""
import base64
import hashlib
import sys
import time
import tomllib
import zipfile
from pathlib import Path

directory, version, seconds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
project = tomllib.loads(Path("sdk/python/pyproject.toml").read_text())["project"]
name = project["name"].replace("-", "_")
info = f"{name}-{version}.dist-info"
files = {
    "purser.py": Path("sdk/python/purser.py").read_bytes(),
    f"{info}/LICENSE": Path("LICENSE").read_bytes(),
    f"{info}/METADATA": (
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\nSummary: {project['description']}\n"
        f"License: {project['license']['text']}\nRequires-Python: {project['requires-python']}\nLicense-File: LICENSE\n"
    ).encode(),
    f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: purser\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


def recorded(path, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"


record = "".join(recorded(*file) for file in files.items())
files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
    for path, content in files.items():
        member = zipfile.ZipInfo(path, time.gmtime(seconds)[:6])
        member.external_attr = 0o100644 << 16
        member.compress_type = zipfile.ZIP_DEFLATED
        wheel.writestr(member, content)
