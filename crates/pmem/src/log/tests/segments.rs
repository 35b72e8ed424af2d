//! Tests of segments and allocations without a medium: no segment is leased twice or reused while
//! it has live bytes, and all space is released in the end.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;

use crate::Error;
use crate::log::layout::{Head, LINE};
use crate::log::space::{Allocation, Lease, LeaseEnd, Space, Stream};

const SEGMENT: u64 = 4096;
const COUNT: u64 = 12;
/// Number of segments that only compaction may lease.
const SPARE: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A writer leases a segment.
    Lease,
    /// A writer appends this number of lines and returns its segment.
    Append(usize, u64),
    /// The medium fails under a writer, which returns its segment.
    Fail(usize),
    /// A value is removed from the log.
    Remove(usize),
    /// Bytes of a value are sent by `sendfile`.
    Send(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Lease),
        8 => (any::<usize>(), 1..64_u64).prop_map(|(nth, lines)| Step::Append(nth, lines)),
        1 => any::<usize>().prop_map(Step::Fail),
        4 => any::<usize>().prop_map(Step::Remove),
        2 => any::<usize>().prop_map(Step::Send),
    ]
}

/// A stored value that consists of one record.
struct Value {
    segment: u32,
    bytes: u64,
    allocation: Arc<Allocation>,
}

struct Model {
    space: Arc<Space>,
    leases: Vec<Lease>,
    values: Vec<Value>,
    sent: HashSet<u32>,
    retired: HashSet<u32>,
}

impl Model {
    fn new() -> Self {
        let head = Head {
            id: 1,
            size: 8192 + COUNT * SEGMENT,
            segment: SEGMENT,
        };
        let space = Space::new(&head, vec![0; usize::try_from(COUNT).unwrap()], 1);
        space.free_unused(&[]);
        Self {
            space: Arc::new(space),
            leases: Vec::new(),
            values: Vec::new(),
            sent: HashSet::new(),
            retired: HashSet::new(),
        }
    }

    fn lease(&mut self) {
        let Some(lease) = self.space.lease(Stream::New, 2 * LINE) else {
            return;
        };
        let (begin, end) = self.space.bounds(lease.segment);
        assert!(begin + LINE <= lease.at && lease.at + 2 * LINE <= end);
        assert!(!self.retired.contains(&lease.segment), "it is retired");
        let leased = self.leases.iter().any(|it| it.segment == lease.segment);
        assert!(!leased, "it is leased twice");
        if lease.fresh {
            let is_live = self.values.iter().any(|it| it.segment == lease.segment);
            assert!(!is_live, "it has live bytes");
            assert_eq!(lease.stale, self.sent.contains(&lease.segment));
            if lease.stale {
                self.space.mark_renewed(lease.segment);
                self.sent.remove(&lease.segment);
            }
        }
        self.leases.push(lease);
    }

    fn append(&mut self, nth: usize, lines: u64) {
        let Some(lease) = self.take_lease(nth) else {
            return;
        };
        let room = self.space.bounds(lease.segment).1 - lease.at;
        let bytes = (lines * LINE).min(room);
        let allocation = Allocation::new(&self.space);
        let next = match allocation.charge(bytes, true) {
            Ok(()) => {
                allocation.mark_live(lease.segment, bytes);
                self.values.push(Value {
                    segment: lease.segment,
                    bytes,
                    allocation,
                });
                lease.at + bytes
            }
            Err(error) => {
                assert!(matches!(error, Error::NoRoom));
                lease.at
            }
        };
        let end = LeaseEnd::ContinueAt(next);
        self.space.give_back(lease.segment, Stream::New, end);
    }

    fn take_lease(&mut self, nth: usize) -> Option<Lease> {
        let count = self.leases.len();
        (count > 0).then(|| self.leases.swap_remove(nth % count))
    }

    fn run(&mut self, step: Step) {
        let count = self.values.len();
        match step {
            Step::Lease => self.lease(),
            Step::Append(nth, lines) => self.append(nth, lines),
            Step::Fail(nth) if self.retired.len() < 3 => {
                if let Some(lease) = self.take_lease(nth) {
                    let end = LeaseEnd::Retired;
                    self.space.give_back(lease.segment, Stream::New, end);
                    self.retired.insert(lease.segment);
                }
            }
            Step::Remove(nth) if count > 0 => drop(self.values.swap_remove(nth % count)),
            Step::Send(nth) if count > 0 => {
                let segment = self.values[nth % count].segment;
                self.space.mark_sent(self.space.bounds(segment).0 + LINE);
                self.sent.insert(segment);
            }
            Step::Fail(_) | Step::Remove(_) | Step::Send(_) => {}
        }
        let charged: u64 = self.values.iter().map(|it| it.allocation.charged()).sum();
        let bytes: u64 = self.values.iter().map(|it| it.bytes).sum();
        assert_eq!((self.space.used(), charged), (bytes, bytes));
        assert!(bytes <= self.space.limit());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_segment_is_leased_twice_or_reused_while_live_and_all_are_freed(
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
        }
        while let Some(lease) = model.take_lease(0) {
            let end = LeaseEnd::ContinueAt(lease.at);
            model.space.give_back(lease.segment, Stream::New, end);
        }
        model.values.clear();
        prop_assert_eq!(model.space.used(), 0);
        // All segments are free again, except for retired segments and the segments for compaction.
        let whole = || model.space.lease(Stream::New, SEGMENT - LINE);
        let fresh: HashSet<_> = std::iter::from_fn(whole).map(|it| it.segment).collect();
        let free = usize::try_from(COUNT).unwrap() - model.retired.len();
        prop_assert_eq!(fresh.len(), free - SPARE);
        prop_assert!(fresh.is_disjoint(&model.retired));
        let spare = || model.space.lease(Stream::Compacted, SEGMENT - LINE);
        prop_assert_eq!(std::iter::from_fn(spare).count(), SPARE);
    }
}
