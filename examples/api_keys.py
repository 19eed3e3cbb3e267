"""Keys with scopes and prefixes, and a ticket for what cannot send a header."""

import hashlib
import secrets
import tempfile
from pathlib import Path

import httpx
from serving import served

# --8<-- [start:file]
KEYS = """
[[key]]
name = "shop"                      # appears in logs and error messages; the secret never does
digest = "{digest}"
scopes = ["read", "write"]
prefixes = ["shop."]               # names it may touch; leave it out for all
expires = 2040-01-01

[key.quota]
records_per_second = 5_000
connections = 100
"""


def new_key() -> tuple[str, str]:
    """A secret for whoever uses it, and the digest that the server keeps."""
    secret = secrets.token_urlsafe(32)
    return secret, hashlib.sha256(secret.encode()).hexdigest()


# --8<-- [end:file]


# --8<-- [start:use]
def main(directory: Path) -> None:
    secret, digest = new_key()
    keys = directory / "keys.toml"
    keys.write_text(KEYS.format(digest=digest), encoding="utf-8")
    with (
        served("--keys", str(keys)) as url,
        httpx.Client(base_url=url, headers={"authorization": f"Bearer {secret}"}) as client,
    ):
        body = {"records": [{"data": 1}]}
        print(client.post("/v0/topics/shop.orders", json=body).status_code)
        print(client.post("/v0/topics/bank.orders", json=body).json()["error"]["message"])
        print(httpx.post(url + "/v0/topics/shop.orders", json=body).status_code)

        path = "/v0/topics/shop.orders/watch"
        ticket = client.post("/v0/tickets", json={"path": path}).json()["ticket"]
        # Without a key, as an EventSource would: the ticket stands for it, once.
        for _ in range(2):
            with httpx.stream("GET", url + path, params={"ticket": ticket}) as response:
                print(response.status_code)


# --8<-- [end:use]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
