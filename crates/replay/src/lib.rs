//! Eviction simulator: request traces, synthetic workloads, optimal policies, and charts of the results.

#![forbid(unsafe_code)]
