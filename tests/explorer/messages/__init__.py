"""The life of messages: the plans of publishers and workers, run on the real `step`, with all that may fail.

Not modelled, on purpose:
* lengths of time. The model knows whether a lease or an offer has expired, and nothing else of the clock. A
  lease whose owner lives expires only in a `pause`, and the lease of a queued message only if its queue is
  longer than `queued_ttl` (`backlog`). A lease without an owner expires only if a fault explains that.
* several messages at once in one worker, prefetch, and the order of a queue: any message may be the next.
* copies of one publish in several queues (broadcast), and messages that come back by a dead-letter exchange.
* `limit` above 1, full lines, `on_full`, `give_up_after`, and entries that step aside: the explorer of `step`
  has some of them, and all of them are tests of their own.
* a store that is down for long when a body ends, `on_store_error`, and `apply()` in the same process.
* releases by an operator (`ForceRelease`), and options that differ between publisher and worker.
* threads, gevent and solo pools, where the end of the body is seen by the process that runs it.
* the number of deliveries: the message of a task that left the line of its lock too late would come twice.
* tombstones that expire before the last copy has come.
"""
