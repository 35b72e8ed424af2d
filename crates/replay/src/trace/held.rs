//! A whole trace in memory: 24 bytes a request and 8 an object, to be replayed many times at once.

use std::collections::HashMap;

use super::Wrong;
use crate::policy::belady::Future;
use pierhead_eviction::Access;

/// The requests of a trace in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held {
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
    /// Seconds since the first request.
    after: u32,
    cost: f32,
    shared: u32,
}

/// Takes requests in and makes a [`Held`] of them.
#[derive(Debug, Default)]
pub struct Holder {
    held: Held,
    objects: HashMap<u64, u32>,
    latest: u64,
    backwards: u64,
}

impl Holder {
    /// The next request. Its time counts from the first one's, up to 136 years; one that is earlier than
    /// the latest, as between parts in the wrong order, is taken to be as late.
    ///
    /// # Errors
    /// [`Wrong::Unfit`] when there are 2^32 - 1 already.
    pub fn push(&mut self, access: &Access<u64>) -> Result<(), Wrong> {
        let held = &mut self.held;
        if held.requests.len() >= u32::MAX as usize {
            return Err(Wrong::Unfit(
                "more than 4294967295 requests; replay the trace in parts",
            ));
        }
        if held.requests.is_empty() {
            held.start = access.tick;
        }
        self.backwards += u64::from(access.tick < self.latest);
        self.latest = self.latest.max(access.tick);
        // There are not more objects than requests.
        let next = u32::try_from(held.keys.len()).unwrap_or(u32::MAX);
        let object = *self.objects.entry(access.key).or_insert(next);
        if object == next {
            held.keys.push(access.key);
            held.footprint = held.footprint.saturating_add(access.size);
        }
        held.bytes = held.bytes.saturating_add(access.size);
        held.requests.push(Request {
            size: access.size,
            object,
            after: u32::try_from(self.latest.saturating_sub(held.start)).unwrap_or(u32::MAX),
            cost: access.cost,
            shared: access.shared,
        });
        Ok(())
    }

    /// Requests so far whose time was changed since they ran back.
    pub fn backwards(&self) -> u64 {
        self.backwards
    }

    /// What was pushed.
    pub fn finish(self) -> Held {
        self.held
    }
}

impl FromIterator<Access<u64>> for Held {
    /// For what is made and not read; requests over 2^32 - 1 are left out.
    fn from_iter<I: IntoIterator<Item = Access<u64>>>(accesses: I) -> Self {
        let mut holder = Holder::default();
        for access in accesses {
            if holder.push(&access).is_err() {
                break;
            }
        }
        holder.finish()
    }
}

impl Held {
    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// How many different keys there are.
    pub fn objects(&self) -> usize {
        self.keys.len()
    }

    /// The sizes of the different keys together, each as it came first.
    pub fn footprint(&self) -> u64 {
        self.footprint
    }

    /// The sizes of all requests together, at most 2^64 - 1.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Seconds from the first request to the last.
    pub fn seconds(&self) -> u64 {
        self.requests.last().map_or(0, |last| last.after.into())
    }

    /// Bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        self.requests.capacity() * size_of::<Request>() + self.keys.capacity() * size_of::<u64>()
    }

    /// The requests, their time counted from the first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Access<u64>> + Clone + '_ {
        self.requests.iter().map(|request| Access {
            key: self.keys[request.object as usize],
            size: request.size,
            tick: request.after.into(),
            cost: request.cost,
            shared: request.shared,
        })
    }

    /// What those policies see that know the future: 8 bytes a request more.
    pub fn future(&self) -> Future {
        Future::of(self.requests.iter().map(|request| request.object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_with_times_from_the_first_and_footprint_by_first_sizes() {
        let trace = [(7, 5, 100), (8, 1 << 40, 101), (7, 6, 104)];
        let accesses = trace.map(|(key, size, tick)| Access::new(key, size, tick));
        let held: Held = accesses.into_iter().collect();
        let back: Vec<Access<u64>> = held.iter().collect();
        let expected = trace.map(|(key, size, tick)| Access::new(key, size, tick - 100));
        assert_eq!(back, expected);
        assert_eq!((held.len(), held.objects(), held.seconds()), (3, 2, 4));
        assert_eq!(held.footprint(), 5 + (1 << 40));
        assert_eq!(held.bytes(), 11 + (1 << 40));
    }

    #[test]
    fn a_part_that_is_earlier_than_the_one_before_is_clamped_and_counted() {
        let mut holder = Holder::default();
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
        let held: Held = [1, 2]
            .map(|key| Access::new(key, u64::MAX, 0))
            .into_iter()
            .collect();
        assert_eq!((held.footprint(), held.bytes()), (u64::MAX, u64::MAX));
    }
}
