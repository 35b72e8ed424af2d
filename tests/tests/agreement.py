"""Replays a trace through libcachesim: the peer of agreement.rs, in a process of its own.

Arguments: an oracleGeneral trace, cache sizes in bytes joined by commas, policies joined by commas, and
the file that gets {"POLICY SIZE": [object miss ratio, byte miss ratio]}: libcachesim writes warnings to
the standard output.
"""

import json
import sys
import threading

import libcachesim

KINDS = {
    "fifo": libcachesim.FIFO,
    "lru": libcachesim.LRU,
    "sieve": libcachesim.Sieve,
    "belady": libcachesim.Belady,
    "s3-fifo": libcachesim.S3FIFO,
    "gdsf": libcachesim.GDSF,
    "arc": libcachesim.ARC,
    "lhd": libcachesim.LHD,
}

trace, sizes, policies, out = sys.argv[1:]
found = {}


def replay(policy, size):
    reader = libcachesim.TraceReader(
        trace=trace, trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE
    )
    # Its table of 2^24 buckets is of no use to traces as short as these.
    cache = KINDS[policy](cache_size=int(size), hashpower=18)
    found[f"{policy} {size}"] = cache.process_trace(reader)


for policy in policies.split(","):
    for size in sizes.split(","):
        # It draws lots from a state that each thread has for itself: a new one begins anew.
        thread = threading.Thread(target=replay, args=(policy, size))
        thread.start()
        thread.join()
with open(out, "w", encoding="ascii") as file:
    json.dump(found, file)
