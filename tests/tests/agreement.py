"""Computes reference miss ratios with libcachesim. tests/tests/agreement.rs compares them with pierhead's policies.

Arguments: a trace in the format oracleGeneral, cache sizes in bytes (comma-separated), policies
(comma-separated), and the output file for {"POLICY SIZE": [object miss ratio, byte miss ratio]}. The
output goes to a file, since libcachesim writes warnings to the standard output.
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
ratios = {}


def replay(policy, size):
    reader = libcachesim.TraceReader(
        trace=trace, trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE
    )
    # The default hash table of 2^24 buckets is too large for these short traces.
    cache = KINDS[policy](cache_size=int(size), hashpower=18)
    ratios[f"{policy} {size}"] = cache.process_trace(reader)


for policy in policies.split(","):
    for size in sizes.split(","):
        # The random state of libcachesim is per thread: a new thread makes each replay deterministic.
        thread = threading.Thread(target=replay, args=(policy, size))
        thread.start()
        thread.join()
with open(out, "w", encoding="ascii") as file:
    json.dump(ratios, file)
