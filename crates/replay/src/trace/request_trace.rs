//! A request trace in memory, which many replays read in parallel. The trace takes 24 bytes per
//! request and 8 bytes per key.

use std::collections::HashMap;

use super::TraceErrorKind;
use crate::policy::belady::Future;
use pierhead_eviction::Access;

/// The requests of a trace, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestTrace {
    keys: Vec<u64>,
    requests: Vec<Request>,
    start: u64,
    footprint: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Request {
    size: u64,
    object: u32,
    /// Seconds since the first request of the trace.
    after: u32,
    cost: f32,
    shared: u32,
}

/// Builds a [`RequestTrace`] from requests.
#[derive(Debug, Default)]
pub struct RequestTraceBuilder {
    trace: RequestTrace,
    objects: HashMap<u64, u32>,
    latest: u64,
    backwards: u64,
}

impl RequestTraceBuilder {
    /// Appends a request. Times count from the first request, up to 136 years. A request that is
    /// earlier than a previous request gets the latest previous time. Such requests occur when
    /// files are in the wrong order.
    ///
    /// # Errors
    /// [`TraceErrorKind::NotReplayable`] when the trace already has 2^32 - 1 requests.
    pub fn push(&mut self, access: &Access<u64>) -> Result<(), TraceErrorKind> {
        let trace = &mut self.trace;
        if trace.requests.len() >= u32::MAX as usize {
            return Err(TraceErrorKind::NotReplayable(
                "more than 4294967295 requests; replay the trace in parts",
            ));
        }
        if trace.requests.is_empty() {
            trace.start = access.tick;
        }
        self.backwards += u64::from(access.tick < self.latest);
        self.latest = self.latest.max(access.tick);
        // There are at most as many keys as requests.
        let next = u32::try_from(trace.keys.len()).unwrap_or(u32::MAX);
        let object = *self.objects.entry(access.key).or_insert(next);
        if object == next {
            trace.keys.push(access.key);
            trace.footprint = trace.footprint.saturating_add(access.size);
        }
        trace.bytes = trace.bytes.saturating_add(access.size);
        trace.requests.push(Request {
            size: access.size,
            object,
            after: u32::try_from(self.latest.saturating_sub(trace.start)).unwrap_or(u32::MAX),
            cost: access.cost,
            shared: access.shared,
        });
        Ok(())
    }

    /// Returns the number of requests so far whose time was changed.
    pub fn backwards(&self) -> u64 {
        self.backwards
    }

    /// Returns the complete trace.
    pub fn finish(self) -> RequestTrace {
        self.trace
    }
}

impl FromIterator<Access<u64>> for RequestTrace {
    /// Makes a trace of a generated workload. Requests after the first 2^32 - 1 are left out.
    fn from_iter<I: IntoIterator<Item = Access<u64>>>(accesses: I) -> Self {
        let mut holder = RequestTraceBuilder::default();
        for access in accesses {
            if holder.push(&access).is_err() {
                break;
            }
        }
        holder.finish()
    }
}

impl RequestTrace {
    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether the trace has no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the number of distinct keys.
    pub fn objects(&self) -> usize {
        self.keys.len()
    }

    /// Returns the sum of the sizes of all distinct keys, in bytes. If a key has several sizes, the
    /// first one counts.
    pub fn footprint(&self) -> u64 {
        self.footprint
    }

    /// Returns the sum of the sizes of all requests, at most 2^64 - 1.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of seconds from the first request to the last request.
    pub fn seconds(&self) -> u64 {
        self.requests.last().map_or(0, |last| last.after.into())
    }

    /// Returns the number of bytes of memory that the trace takes.
    pub fn memory(&self) -> usize {
        self.requests.capacity() * size_of::<Request>() + self.keys.capacity() * size_of::<u64>()
    }

    /// Returns the requests, with times that count from the first request.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Access<u64>> + Clone + '_ {
        self.requests.iter().map(|request| Access {
            key: self.keys[request.object as usize],
            size: request.size,
            tick: request.after.into(),
            cost: request.cost,
            shared: request.shared,
        })
    }

    /// Returns the future of the trace, for policies that know the future. The future
    /// takes 8 bytes of memory per request, in addition to the trace.
    pub fn future(&self) -> Future {
        Future::of(self.requests.iter().map(|request| request.object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_with_times_from_the_first_and_footprint_by_first_sizes() {
        let requests = [(7, 5, 100), (8, 1 << 40, 101), (7, 6, 104)];
        let accesses = requests.map(|(key, size, tick)| Access::new(key, size, tick));
        let trace: RequestTrace = accesses.into_iter().collect();
        let back: Vec<Access<u64>> = trace.iter().collect();
        let expected = requests.map(|(key, size, tick)| Access::new(key, size, tick - 100));
        assert_eq!(back, expected);
        assert_eq!((trace.len(), trace.objects(), trace.seconds()), (3, 2, 4));
        assert_eq!(trace.footprint(), 5 + (1 << 40));
        assert_eq!(trace.bytes(), 11 + (1 << 40));
    }

    #[test]
    fn a_part_that_is_earlier_than_the_one_before_is_clamped_and_counted() {
        let mut holder = RequestTraceBuilder::default();
        for tick in [100, 110, 50, 60, 120] {
            let pushed = holder.push(&Access::new(tick, 1, tick));
            assert_eq!(pushed, Ok(()));
        }
        assert_eq!(holder.backwards(), 2);
        let ticks: Vec<u64> = holder.finish().iter().map(|access| access.tick).collect();
        assert_eq!(ticks, [0, 10, 10, 10, 20]);
    }

    #[test]
    fn sums_stay_at_their_end() {
        let trace: RequestTrace = [1, 2]
            .map(|key| Access::new(key, u64::MAX, 0))
            .into_iter()
            .collect();
        assert_eq!((trace.footprint(), trace.bytes()), (u64::MAX, u64::MAX));
    }
}
