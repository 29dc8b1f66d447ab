"""Two gateways with workers, PostgreSQL, Redis, an engine and haproxy on this machine, and the faults that can happen to them.

| fault | how |
|---|---|
| a worker is killed, or hangs | `os.kill(cluster.a.workers()[0], SIGKILL)`, or SIGSTOP and SIGCONT |
| a control process is killed | `cluster.a.kill()`; `cluster.a.start()` brings the replica back on the same ports |
| a replica leaves | `cluster.a.stop()` |
| Redis, the engine or PostgreSQL hangs | `cluster.redis.freeze()`, `.thaw()`; the same of `engine` and `postgres` |
| PostgreSQL restarts | `cluster.postgres.stop()`, `.start()` |
| a gateway's network fails | `cluster.a.ways["postgres"]` (redis, engine): `.partition()`, `.drop()`, `.delay(s)`, `.reset()`, `.heal()` |
| an operator takes a replica out | `cluster.haproxy.tell("disable server replicas/a")` |

The models: `static` answers at once, `stream` in 10 events and `long` in 100 (each 20 ms), `slow` after half a second; `far` is `static`
through the proxy of the engine. `load.py` is constant load with an exact account, `Cluster.at_each_worker` a connection to each worker,
`machine.py` what /proc says about processes.
"""
