"""A client of a running server, blocking and for asyncio.

from fairway.client import Client

with Client("http://127.0.0.1:4000") as client:
    orders = client.topic("orders")
    orders.append({"id": 1}, tag="eu")
    for record in orders.watch():
        print(record.seq, record.data)
"""

from __future__ import annotations

from fairway.client.aio.client import AsyncClient
from fairway.client.aio.graphs import AsyncRemoteGraphs
from fairway.client.aio.jobs import AsyncRemoteJobs
from fairway.client.aio.topics import AsyncTopicHandle, AsyncWatch
from fairway.client.aio.workflows import AsyncRemoteWorkflows
from fairway.client.bulk import Progress
from fairway.client.records import Cursor, NewRecord, Page, Position, Record
from fairway.client.retry import RetryConfig
from fairway.client.server_topics import ServerTopics
from fairway.client.sync.client import Client
from fairway.client.sync.graphs import RemoteGraphs
from fairway.client.sync.jobs import RemoteJobs
from fairway.client.sync.topics import TopicHandle, Watch
from fairway.client.sync.workflows import RemoteWorkflows
from fairway.wire.events import TombstoneEvent as Tombstone

__all__ = [
    "AsyncClient",
    "AsyncRemoteGraphs",
    "AsyncRemoteJobs",
    "AsyncRemoteWorkflows",
    "AsyncTopicHandle",
    "AsyncWatch",
    "Client",
    "Cursor",
    "NewRecord",
    "Page",
    "Position",
    "Progress",
    "Record",
    "RemoteGraphs",
    "RemoteJobs",
    "RemoteWorkflows",
    "RetryConfig",
    "ServerTopics",
    "Tombstone",
    "TopicHandle",
    "Watch",
]
