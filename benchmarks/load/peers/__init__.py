"""Other job queues, each drained by a script of its own in an environment of its own."""
