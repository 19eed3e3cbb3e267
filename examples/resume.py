"""Resume a stream of server-sent events after the server was gone, with nothing but HTTP."""

import tempfile

import httpx
from serving import served

# --8<-- [start:follow]
Event = tuple[str, str, str]  # id, kind, data


def events(url: str, last_event_id: str | None, count: int) -> list[Event]:
    """The next `count` events of a watch, from where `last_event_id` says."""
    headers = {"last-event-id": last_event_id} if last_event_id else {}
    found: list[Event] = []
    with httpx.stream("GET", url, headers=headers, timeout=10) as response:
        event: dict[str, str] = {}
        for line in response.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif "data" in event:
                found.append((event["id"], event["event"], event["data"]))
                event = {}
            if len(found) == count:
                break
    return found


# --8<-- [end:follow]


# --8<-- [start:story]
def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        with served(data=directory) as url:
            append(url, "one", "two")
            first = events(url + "/v0/topics/news/watch", None, 1)
            last_event_id = first[-1][0]
            print("seen up to", last_event_id)
        with served(data=directory) as url:  # another process, another port, the same data
            append(url, "three")
            for event in events(url + "/v0/topics/news/watch", last_event_id, 2):
                print(*event)


# --8<-- [end:story]


def append(url: str, *values: str) -> None:
    records = [{"data": value} for value in values]
    httpx.post(url + "/v0/topics/news", json={"records": records}).raise_for_status()


if __name__ == "__main__":
    main()
