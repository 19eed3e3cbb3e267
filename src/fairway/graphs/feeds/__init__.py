"""The feeds that Fairway brings, a module each: `poll.poll`, `topic.topic` and `kafka.kafka`."""
