"""A client of a running server, sync and async.

from fairway.client import Client

with Client("http://127.0.0.1:4000") as client:
    orders = client.topic("orders")
    orders.append({"id": 1}, tag="eu")
    for record in orders.watch():
        print(record.seq, record.data)
"""

from __future__ import annotations

from fairway.client.aio import AsyncClient, AsyncTopicHandle, AsyncWatch
from fairway.client.bulk import Progress
from fairway.client.graphs import AsyncRemoteGraphs, RemoteGraphs
from fairway.client.jobs import AsyncRemoteJobs, RemoteJobs
from fairway.client.records import Cursor, NewRecord, Page, Position, Record
from fairway.client.retry import RetryConfig
from fairway.client.sync import Client, TopicHandle, Watch
from fairway.wire.events import TombstoneEvent as Tombstone

__all__ = [
    "AsyncClient",
    "AsyncRemoteGraphs",
    "AsyncRemoteJobs",
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
    "RetryConfig",
    "Tombstone",
    "TopicHandle",
    "Watch",
]
