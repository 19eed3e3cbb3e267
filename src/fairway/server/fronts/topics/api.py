"""The routes of topics and routers: from messages to the engine and back."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import msgspec

from fairway.errors import Conflict, Forbidden, InvalidRequest, NotFound
from fairway.server.fronts.streams.protocol import refuse_append
from fairway.server.fronts.topics.quotas import TopicQuotas
from fairway.server.http.exchange import (
    JSON,
    Disconnected,
    Reply,
    Request,
    flag,
    json_reply,
    number,
    parse,
)
from fairway.server.http.held_bytes import FREE
from fairway.server.http.paging import make_cursor, read_cursor
from fairway.settings import UNLIMITED
from fairway.topics.batch import Projection, encode_record
from fairway.topics.engine import Topics
from fairway.topics.match import TagMatch
from fairway.topics.reading import NO_NODES, Selection, about_behind
from fairway.topics.writing import NewBatch
from fairway.wire.records import parse_records
from fairway.wire.topics import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    PAGE_MAX,
    READ_BYTES_DEFAULT,
    READ_BYTES_MAX,
    WAIT_MS_MAX,
    AppendReply,
    AppendRequest,
    DeleteReply,
    DeleteRequest,
    DeleteRouterReply,
    DeleteTopicReply,
    DiffRequest,
    PutRouterReply,
    PutTopicReply,
    RouterConfig,
    RouterList,
    Tombstone,
    TopicList,
    TopicPatch,
    TopicState,
    TopicSummary,
    check_name,
    check_writer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairway.server.access.auth import Identity
    from fairway.server.host import Host
    from fairway.server.http.asgi import ExpressReply
    from fairway.server.http.large_pages import Reservation
    from fairway.settings import Scope
    from fairway.topics.batch import Record
    from fairway.topics.outcome import Appended
    from fairway.topics.reading import Diff, Page
    from fairway.topics.topic import Topic
    from fairway.wire.records import Records

_APPEND = msgspec.json.Decoder(AppendRequest)
_DIFF = msgspec.json.Decoder(DiffRequest)
_DELETE = msgspec.json.Decoder(DeleteRequest)
_PATCH = msgspec.json.Decoder(TopicPatch)
_ROUTER = msgspec.json.Decoder(RouterConfig)
_encode = msgspec.json.Encoder().encode
_PLAIN: Final = AppendRequest(records=msgspec.Raw(b"[]"))
_PLAIN_BEGINS, _PLAIN_ENDS = b'{"records":[', b"]}"


# Records


async def append(host: Host, request: Request, topic: str) -> Reply:
    return_seqs = _return_seqs(request)  # what is wrong is said before anything is written
    body = await request.body()
    check_name(topic)
    message, new = _read_append(host, request, body, topic)
    found, appended, created = await host.part(Topics).append(
        topic, new, create=message.create, config=message.config, owner=request.identity.name
    )
    return _append_reply(found, return_seqs, created, appended)


def append_express(
    host: Host, request: Request, body: bytes, reply: ExpressReply, topic: str
) -> bool:
    """An append to a topic that is there, and that needs nothing but to be written."""
    topics = host.part(Topics)
    found = topics.find(topic)
    if found is None:
        return False
    return_seqs = _return_seqs(request)
    _, new = _read_append(host, request, body, topic)
    reply.finish = partial(_append_reply, found, return_seqs, False)
    return topics.append_now(reply.send, found, new)


def _return_seqs(request: Request) -> bool:
    if not request.scope["query_string"]:
        return True
    query = request.query(("return_seqs",))
    return flag(query.get("return_seqs"), "return_seqs", default=True)


def _read_append(
    host: Host, request: Request, body: bytes, topic: str
) -> tuple[AppendRequest, NewBatch]:
    headers = request.headers
    if headers.get(b"content-type") != JSON[1]:
        request.require_json()
    parsed = _parse_plain(body)
    message = parse(_APPEND, body) if parsed is None else _PLAIN
    identity = request.identity
    identity.require("write", topic)
    refuse_append(topic)
    if message.config is not None:
        identity.require("admin", topic)  # as for PUT: a writer does not set its own priority
    records = parsed if parsed is not None else parse_records(bytes(message.records))
    node, key = message.node, message.idempotency_key
    if key is None and b"idempotency-key" in headers:
        key = request.header(b"idempotency-key")
    if node is not None or key is not None:
        check_writer(node, key)
    if identity.quota is not UNLIMITED:
        host.state(TopicQuotas).charge(
            identity, topic, records=records.count, size=len(records.raw)
        )
    return message, NewBatch(
        records=records,
        node=node,
        key=key,
        trace=request.trace,
        patient=message.disable_backpressure,
    )


def _parse_plain(body: bytes) -> Records | None:
    """The records of a body that has nothing else in it, which most have; None for any other.

    What is left between these ends is a JSON array if and only if the body is such an object, so
    it need not be gone through twice.
    """
    if not (body.startswith(_PLAIN_BEGINS) and body.endswith(_PLAIN_ENDS)):
        return None
    try:
        return parse_records(body[len(_PLAIN_BEGINS) - 1 : 1 - len(_PLAIN_ENDS)])
    except InvalidRequest:
        return None  # the long way finds the same, or what it really is


def _append_reply(topic: Topic, return_seqs: bool, created: bool, appended: Appended) -> Reply:
    first, last = appended.first_seq, appended.last_seq
    reply = AppendReply(
        topic=topic.name,
        epoch=abs(topic.epoch),  # negative if it was deleted meanwhile
        first_seq=first,
        last_seq=last,
        seqs=list(range(first, last + 1)) if return_seqs else msgspec.UNSET,
        head_seq=topic.head,
        count=last - first + 1,
        created=created,
        deduped=appended.deduped,
    )
    return Reply(201 if created else 200, _encode(reply))


async def diff(host: Host, request: Request, topic: str) -> Reply:
    message = await request.json(_DIFF, empty=b"{}")
    check_name(topic)
    request.identity.require("read", topic)
    topics = host.part(Topics)
    found = topics.get(topic)
    selection = Selection(
        nodes_of(message.node) if found.config.dedupe_node else NO_NODES,
        TagMatch.of(message.match) if message.match is not None else None,
    )
    after = message.from_seq
    limit = min(message.limit or LIMIT_DEFAULT, LIMIT_MAX)
    max_bytes = min(message.max_batch_bytes or READ_BYTES_DEFAULT, READ_BYTES_MAX)
    projection = Projection(message.include_tags, message.include_meta)
    if found.bytes > FREE and after != found.head:
        other = after > found.head or message.epoch not in (None, found.epoch)
        about = min(about_behind(found, 0 if other else after, limit), max_bytes)
        if about > FREE:
            large = _LargeDiff(host, request, message, selection, projection)
            answer, records = await large.read(topic, limit, max_bytes, about)
            page = answer.page
            if not message.wait_ms or records or page.gap is not None or answer.recreated:
                return diff_reply(answer, records)
            after = page.next_seq  # nothing that it wants: it waits with the others
    answer = await topics.reading.diff(
        topic,
        after,
        epoch=message.epoch,
        limit=limit,
        max_bytes=min(max_bytes, host.pages.step),
        selection=selection,
        wait_ns=min(message.wait_ms, WAIT_MS_MAX) * 1_000_000,
    )
    if message.wait_ms:
        host.confirm(request)
        request.identity.require("read", topic)
    return diff_reply(answer, [encode_record(record, projection) for record in answer.page.records])


class _LargeDiff:
    """Reads and encodes a page for which there must be room, in steps if it is more than one."""

    def __init__(
        self,
        host: Host,
        request: Request,
        message: DiffRequest,
        selection: Selection,
        projection: Projection,
    ) -> None:
        self._host = host
        self._step = host.pages.step
        self._request = request
        self._message = message
        self._selection = selection
        self._projection = projection

    async def read(
        self, name: str, limit: int, max_bytes: int, about: int
    ) -> tuple[Diff, list[bytes]]:
        """The page, `about` so large, and its records encoded, some of them together.

        Raises `Throttled` before anything is read if there is no room for it.
        """
        await self._check_reader()  # whoever does not read what it has is not built more
        pages = self._host.pages
        with pages.reserve(about) as room:
            if about <= self._step:
                return await self._build(name, limit, min(max_bytes, self._step), room)
            async with pages.turn(self._request.identity.name):
                await self._check_reader()
                return await self._build(name, limit, max_bytes, room)

    async def _check_reader(self) -> None:
        connection = self._request.connection
        if connection is not None and not await connection.wait_read():
            raise Disconnected

    async def _build(
        self, name: str, limit: int, max_bytes: int, room: Reservation
    ) -> tuple[Diff, list[bytes]]:
        reading = self._host.part(Topics).reading
        message, selection = self._message, self._selection
        answer = await reading.diff(
            name,
            message.from_seq,
            epoch=message.epoch,
            limit=limit,
            max_bytes=max_bytes,
            selection=selection,
            step=self._step,
        )
        topic, page, recreated = answer
        begin = message.from_seq if not recreated else 0
        begin = page.gap.last if page.gap is not None else begin
        parts: list[bytes] = []
        size, more = 0, page
        # Each step reads more than half of one, or the next does: a page that finds little in much
        # is not looked for without end.
        for _ in range(2 * max_bytes // self._step + 1):
            size += sum(map(_size_of, more.records))
            await self._encode(more.records, parts)
            end, left = more.next_seq, limit - (more.next_seq - begin)
            if end >= topic.head or left <= 0 or size >= max_bytes:
                break
            if not room.cover(sum(map(len, parts))):
                break  # it is more than it seemed: what is there is a page too
            await asyncio.sleep(0)
            more = await reading.page(
                topic, end, topic.head, left, max_bytes - size, selection, self._step
            )
            if more.gap is not None or more.next_seq == end or self._passes(more, max_bytes - size):
                break  # it begins the next page
            page = page._replace(next_seq=more.next_seq)
        return answer._replace(page=page), parts

    def _passes(self, more: Page, left: int) -> bool:
        """Whether a page is more than was asked for, as one with a single record may be."""
        return len(more.records) == 1 and _size_of(more.records[0]) > left

    async def _encode(self, records: list[Record], parts: list[bytes]) -> None:
        """Encode records in parts of about a step; they are let go as they are."""
        together: list[bytes] = []
        size = 0
        for record in records:
            encoded = encode_record(record, self._projection)
            together.append(encoded)
            size += len(encoded)
            if size >= self._step:
                parts.append(b",".join(together))
                together, size = [], 0
                await asyncio.sleep(0)
        if together:
            parts.append(b",".join(together))


def _size_of(record: Record) -> int:
    """What it counts against `max_batch_bytes`."""
    return len(record.data) + len(record.meta or b"")


def diff_reply(answer: Diff, records: list[bytes]) -> Reply:
    """`records` are encoded, one or several together; they are used up."""
    topic, page, _ = answer
    tombstone = tombstone_of(answer)
    headers = [JSON]
    if tombstone is not None:
        headers.append((b"fairway-gap", b"%d-%d" % (tombstone.gap_from, tombstone.gap_to)))
    head = topic.head
    if not records:
        records = [b""]
    # Onto the ends of the list, so that a page is copied once more and not twice.
    records[0] = b'{"topic":"%b","epoch":%d,"records":[%b' % (
        topic.name.encode(),
        topic.epoch,
        records[0],
    )
    records[-1] += (
        b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,'
        b'"lag":%d}'
        % (
            page.next_seq,
            head,
            topic.earliest,
            b"true" if page.next_seq >= head else b"false",
            _encode(tombstone),
            max(head - page.next_seq, 0),
        )
    )
    return Reply(200, b",".join(records), tuple(headers))


def tombstone_of(answer: Diff) -> Tombstone | None:
    """What a reader must be told is gone, if anything is."""
    topic, page, recreated = answer
    gap = page.gap
    if gap is None and not recreated:
        return None
    return Tombstone(
        reason="recreated" if recreated or gap is None else gap.reason,
        gap_from=gap.first if gap is not None else 1,
        gap_to=gap.last if gap is not None else 0,
        missed_estimate=gap.last - gap.first + 1 if gap is not None else 0,
        earliest_seq=topic.earliest,
        head_seq=topic.head,
    )


async def delete_records(host: Host, request: Request, topic: str) -> Reply:
    message = await request.json(_DELETE)
    check_name(topic)
    request.identity.require("delete", topic)
    match = TagMatch.of(message.match) if message.match is not None else None
    found, deleted = await host.part(Topics).delete_records(
        topic, before_seq=message.before_seq, match=match, seq=message.seq
    )
    return json_reply(
        DeleteReply(
            topic=topic,
            deleted=deleted,
            earliest_seq=found.earliest,
            head_seq=found.head,
            count=found.count,
            bytes=found.bytes,
        )
    )


# Topics


async def put_topic(host: Host, request: Request, topic: str) -> Reply:
    patch = await request.json(_PATCH, empty=b"{}")
    check_name(topic)
    request.identity.require("admin", topic)
    found, created = await host.part(Topics).put(topic, patch, owner=request.identity.name)
    reply = PutTopicReply(topic=topic, created=created, epoch=found.epoch, config=found.config)
    return json_reply(reply, 201 if created else 200)


async def get_topic(host: Host, request: Request, topic: str) -> Reply:
    query = request.query(("touch",))
    check_name(topic)
    request.identity.require("read", topic)
    found = host.part(Topics).get(topic)
    if flag(query.get("touch"), "touch", default=True):
        host.part(Topics).delivery.touch(found)
    return json_reply(state_of(host, found))


def state_of(host: Host, topic: Topic) -> TopicState:
    live = topic.live
    return TopicState(
        topic=topic.name,
        epoch=topic.epoch,
        head_seq=topic.head,
        earliest_seq=topic.earliest,
        evict_floor=topic.evict_floor,
        next_seq=topic.head + 1,
        count=topic.count,
        bytes=topic.bytes,
        config=topic.config,
        effective_priority=host.part(Topics).delivery.effective_priority(topic),
        last_write_ts=topic.last_ts or None,
        last_read_ts=host.wall_ms_of(topic.last_read_ns),
        watchers=len(live.readers) if live is not None else 0,
    )


async def list_topics(host: Host, request: Request) -> Reply:
    query = request.query(("prefix", "page_size", "cursor"))
    identity = request.identity
    identity.require("read")
    size = min(number(query.get("page_size"), "page_size", default=100, least=1), PAGE_MAX)
    after = read_cursor(query.get("cursor"))
    found: list[Topic] = []
    for prefix in identity.within(query.get("prefix", "")):
        left = size + 1 - len(found)
        found += host.part(Topics).ordered(prefix=prefix, after=after, limit=left)
    page, more = found[:size], len(found) > size
    return json_reply(
        TopicList(
            topics=[_summary(host, topic) for topic in page],
            next_cursor=make_cursor(page[-1].name) if more else msgspec.UNSET,
        )
    )


def _summary(host: Host, topic: Topic) -> TopicSummary:
    return TopicSummary(
        topic=topic.name,
        epoch=topic.epoch,
        head_seq=topic.head,
        earliest_seq=topic.earliest,
        count=topic.count,
        bytes=topic.bytes,
        durability=topic.config.durability,
        effective_priority=host.part(Topics).delivery.effective_priority(topic),
    )


async def delete_topic(host: Host, request: Request, topic: str) -> Reply:
    query = request.query(("if_empty",))
    check_name(topic)
    identity = request.identity
    identity.require("delete", topic)
    if_empty = flag(query.get("if_empty"), "if_empty", default=False)
    shown = {
        name for name, rule in host.part(Topics).routers().items() if _is_of(identity, rule.config)
    }
    routers = await host.part(Topics).delete(topic, if_empty=if_empty)
    return json_reply(
        DeleteTopicReply(
            topic=topic,
            deleted=routers is not None,
            routers_removed=[name for name in routers or () if name in shown],
        )
    )


# Routers: what belongs to others is refused or left out, and never named


def _is_of(identity: Identity, rule: RouterConfig) -> bool:
    """Whether a key may know of a rule: whether it may touch both of its topics."""
    return identity.may_touch(rule.source) and identity.may_touch(rule.dest)


def _permit(identity: Identity, scope: Scope, router: str, rule: RouterConfig) -> None:
    identity.require(scope)
    if not _is_of(identity, rule):
        raise Forbidden(
            f"key {identity.name!r} may not touch the router {router!r}", detail={"name": router}
        )


async def put_router(host: Host, request: Request, router: str) -> Reply:
    config = await request.json(_ROUTER)
    identity = request.identity
    identity.require("admin", config.source, config.dest)
    refuse_append(config.dest)
    try:
        made, created = await host.part(Topics).put_router(
            router, config, owner=identity.name, permit=partial(_permit, identity, "admin", router)
        )
    except Conflict as error:
        cycle = cast("list[str]", error.detail.get("cycle", []))
        own = [name for name in cycle if identity.may_touch(name)]
        if own == cycle:
            raise
        raise Conflict(
            f"router {router!r} would close a cycle with routers that key {identity.name!r} may"
            " not touch",
            code=error.code,
            detail={"cycle": own},
        ) from None
    reply = PutRouterReply(router=router, created=created, **msgspec.structs.asdict(made.config))
    return json_reply(reply, 201 if created else 200)


async def get_router(host: Host, request: Request, router: str) -> Reply:
    request.query()
    check_name(router, what="router")
    identity = request.identity
    identity.require("read")
    found = host.part(Topics).router(router)
    if not _is_of(identity, found.config):
        raise NotFound("router", router)  # as if it were not there: names cannot be tried out
    return json_reply(found.state())


async def list_routers(host: Host, request: Request) -> Reply:
    query = request.query(("prefix", "source", "dest", "page_size", "cursor"))
    identity = request.identity
    identity.require("read")
    size = min(number(query.get("page_size"), "page_size", default=100, least=1), PAGE_MAX)
    after = read_cursor(query.get("cursor"))
    found = [
        router
        for name, router in sorted(host.part(Topics).routers().items())
        if name > after
        and name.startswith(query.get("prefix", ""))
        and query.get("source") in (None, router.config.source)
        and query.get("dest") in (None, router.config.dest)
        and _is_of(identity, router.config)
    ]
    page = found[:size]
    more = len(found) > size
    return json_reply(
        RouterList(
            routers=[router.state() for router in page],
            next_cursor=make_cursor(page[-1].name) if more else msgspec.UNSET,
        )
    )


async def delete_router(host: Host, request: Request, router: str) -> Reply:
    request.query()
    check_name(router, what="router")
    identity = request.identity
    identity.require("delete")
    try:
        deleted = await host.part(Topics).delete_router(
            router, permit=partial(_permit, identity, "delete", router)
        )
    except Forbidden:
        deleted = False  # it is not one of theirs, and whether it is another's is not told
    return json_reply(DeleteRouterReply(router=router, deleted=deleted))


# Small things


def nodes_of(node: str | Iterable[str] | None) -> frozenset[str]:
    if node is None:
        return NO_NODES
    return frozenset((node,)) if isinstance(node, str) else frozenset(node)
