"""What each part shows in the server: every front, once. All else loops over them."""

from __future__ import annotations

from typing import Final

from fairway.server.front import Fronts
from fairway.server.fronts.graphs.front import GraphsFront
from fairway.server.fronts.jobs.front import JobsFront
from fairway.server.fronts.streams.front import StreamsFront
from fairway.server.fronts.system import SystemFront
from fairway.server.fronts.topics.front import TopicsFront
from fairway.server.fronts.workflows.front import WorkflowsFront

FRONTS: Final = Fronts(
    [
        TopicsFront(),
        StreamsFront(),
        JobsFront(),
        WorkflowsFront(),
        GraphsFront(),
        SystemFront(),
    ]
)
"""In the order in which a server starts them."""
