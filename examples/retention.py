"""What a cap takes is announced; what somebody deletes goes in silence."""

import asyncio
import tempfile

from fairway import Fairway
from fairway.errors import TopicFull


# --8<-- [start:cap]
async def cap(app: Fairway) -> None:
    recent = app.topic("recent", cap_records=3)
    for number in range(5):
        await recent.append(number)
    page = await recent.read()
    print("lost", page.lost, "kept", [record.seq for record in page.records])


# --8<-- [end:cap]


# --8<-- [start:reject]
async def reject(app: Fairway) -> None:
    ledger = app.topic("ledger", cap_records=2, discard="reject")
    await ledger.append("a", "b")
    try:
        await ledger.append("c")
    except TopicFull as full:
        print(full)


# --8<-- [end:reject]


# --8<-- [start:delete]
async def delete(app: Fairway) -> None:
    visits = app.topic("visits")
    for user in ("ada", "bob", "ada", "cyd"):
        await visits.append("hello", tag=f"user/{user}")
    await visits.delete(match="user/ada")  # one user's records
    await visits.delete(before_seq=3)  # what is old
    page = await visits.read()
    print("lost", page.lost, "kept", [record.tag for record in page.records])


# --8<-- [end:delete]


async def main(directory: str) -> None:
    async with Fairway(directory) as app:
        await cap(app)
        await reject(app)
        await delete(app)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))
