"""Wrong uses of the public API. A type checker says so of each line that ends in `# wrong`, and of
no other: `tests/test_types.py` compares. It is never run.
"""

from __future__ import annotations

import msgspec

from fairway import Context, Fairway, Outcome
from fairway.client import AsyncClient, Client, NewRecord


class Order(msgspec.Struct):
    id: int


class Checkout(msgspec.Struct):
    id: int

    async def place(self, ctx: Context[Checkout]) -> Outcome:
        return ctx.done()


app = Fairway()
orders = app.topic("orders", Order, cap_records=10)
checkouts = app.machine(Checkout, queue="orders")
flow = app.workflow("nightly")


@app.job
async def bare(id: int, note: str = "") -> str:
    return note


@app.job
def plain(id: int) -> float:
    return id / 2


@app.job
async def with_context(ctx: Context[None], id: int) -> bytes:
    return b""


@app.job(queue="mail", max_attempts=3)
async def with_options(ctx: Context[None], id: int) -> int:
    return id


@flow.task
def extract(day: str) -> dict[str, int]:
    return {}


@flow.task(after=extract, max_attempts=3)
def load(rows: int) -> None: ...


async def jobs() -> None:
    await bare.enqueue(1, note="x")
    await bare.enqueue("one")  # wrong
    await bare.enqueue(1, nota="x")  # wrong
    await bare.enqueue()  # wrong
    await plain.enqueue("one")  # wrong
    await with_context.enqueue(id=1)
    await with_context.enqueue("one")  # wrong
    await with_context.enqueue(id="one")  # wrong
    await with_options.enqueue(id=1)
    await with_options.enqueue(id="one")  # wrong
    await with_options.using(priority=5).enqueue(id="one")  # wrong
    await with_options.using(delay_s="5").enqueue(id=1)  # wrong
    await with_options.using(prio=5).enqueue(id=1)  # wrong
    text: str = await (await bare.enqueue(1)).result()
    number: int = await (await bare.enqueue(1)).result()  # wrong
    raw: bytes = await (await with_context.enqueue(1)).result()
    other: str = await (await with_options.enqueue(1)).result()  # wrong
    half: str = await (await plain.enqueue(1)).result()  # wrong
    print(text, number, raw, other, half)


async def machines() -> None:
    await checkouts.start(Checkout(1))
    await checkouts.start(Order(1))  # wrong
    await checkouts.start(1)  # wrong
    await checkouts.using(queue="x").start(Checkout(1))
    checkouts.begin()  # wrong


async def workflows() -> None:
    extract("monday")
    extract(1)  # wrong
    load(rows=1)
    load(rows="1")  # wrong
    await flow.start({"day": "monday"}, delay_s=1)
    await flow.start({"day": "monday"}, delay="1s")  # wrong


def options() -> None:
    app.topic("a", Order, cap_recods=1)  # wrong
    app.topic("a", Order, durability="sometimes")  # wrong
    app.route("a", "b", filter="eu.*")
    app.route("a", "b", filtre="eu.*")  # wrong
    app.job(queue="mail", prioritty=1)  # wrong
    app.job(isolation="thread")  # wrong
    app.machine(Order, isolation="process")
    app.machine(Order, isolation="thread")  # wrong
    app.machine(Order, prioritty=1)  # wrong
    flow.task(after=extract, max_atempts=3)  # wrong
    app.graph("g", when=orders, checkpoint=True)
    app.graph("g", when=orders, chekpoint=True)  # wrong
    app.source("s", int, capacity=5)
    app.source("s", int, capacty=5)  # wrong


async def topics() -> None:
    await orders.append(Order(1))
    await orders.append(1)  # wrong
    for record in (await orders.read()).records:
        print(record.data.id)
        print(record.data.name)  # wrong
    async for item in orders.watch():
        print(item.data)  # wrong


def client() -> None:
    remote = Client().topic("orders", Order)
    remote.append(Order(1), NewRecord(Order(2), tag="eu"))
    remote.append("one")  # wrong
    remote.put(cap_records=1)
    remote.put(cap_recods=1)  # wrong
    for record in remote.watch():
        print(record.data.id)
        print(record.data.name)  # wrong
    print(remote.diff().records[0].data.name)  # wrong
    Client().put_router("r", "a", "b", filtre="x")  # wrong
    number: int = Client().jobs.wait(1, type=int)
    text: str = Client().jobs.wait(1, type=int)  # wrong
    print(Client().topic("any").diff().records[0].data.anything, number, text)
    number = Client().workflows.wait(Client().workflows.start("etl").id, type=int)
    text = Client().workflows.wait(1, type=int)  # wrong
    Client().workflows.start("etl", contxt={})  # wrong
    print(Client().graphs.fire("pricing").output)  # wrong


async def async_client() -> None:
    remote = AsyncClient().topic("orders", Order)
    await remote.append("one")  # wrong
    await AsyncClient().jobs.enqueu("mail")  # wrong
    print((await AsyncClient().workflows.run(7)).stat)  # wrong
    async for record in remote.watch():
        print(record.data.name)  # wrong
