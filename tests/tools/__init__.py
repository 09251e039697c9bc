"""What the tests stand on: servers, worker processes, a proxy, a pooler, and a record of effects."""
