//! Tests of the set of streams with an upstream that is simulated.
#![allow(
    clippy::cast_possible_truncation,
    reason = "the blob of the tests is small"
)]

use std::collections::BTreeMap;

use pierhead_oci::Digest;
use pierhead_testkit::images::random_bytes;
use proptest::prelude::*;

use super::flow_control::{StreamPlan, StreamRoom};
use super::*;

const SIZE: usize = 3 << 20;

/// A set of streams, their upstream, and their readers.
struct Simulation {
    set: StreamSet,
    content: Bytes,
    clients: Vec<Arc<ClientUsage>>,
    streams: BTreeMap<StreamId, Upstream>,
    readers: BTreeMap<ReaderId, Expected>,
    now: Instant,
    has_failures: bool,
    /// Bytes that all streams received.
    received: u64,
    /// Whether the windows get memory.
    has_memory: bool,
}

#[derive(Default)]
struct Upstream {
    range: Option<(u64, Option<u64>)>,
    hasher: Option<Hasher>,
    is_corrupt: bool,
    position: u64,
}

/// The bytes that a reader still has to get.
#[derive(Debug)]
struct Expected {
    position: usize,
    end: usize,
    is_whole: bool,
    is_corrupt: bool,
}

impl Simulation {
    fn new(has_memory: bool) -> Self {
        Self {
            set: StreamSet::new(Algorithm::Sha256),
            content: random_bytes(1, SIZE),
            clients: (0..3).map(|_| Arc::new(ClientUsage::operator())).collect(),
            streams: BTreeMap::new(),
            readers: BTreeMap::new(),
            now: Instant::now(),
            has_failures: false,
            received: 0,
            has_memory,
        }
    }

    fn add_reader(&mut self, client: usize, selected: SelectedBytes) -> ReaderId {
        let (position, end) = match selected {
            SelectedBytes::Whole => (0, SIZE),
            SelectedBytes::Range { first, end } => (first as usize, end.unwrap() as usize),
            SelectedBytes::Suffix(count) => (SIZE - count as usize, SIZE),
        };
        let client = self.clients[client % self.clients.len()].clone();
        let id = self.set.add_reader(client, selected);
        let expected = Expected {
            position,
            end,
            is_whole: matches!(selected, SelectedBytes::Whole),
            is_corrupt: false,
        };
        self.readers.insert(id, expected);
        id
    }

    /// Lets a reader take its next bytes. Returns whether anything happened.
    fn read(&mut self, id: ReaderId, max: usize) -> bool {
        match self.set.poll(id, max) {
            ReadStep::Bytes(bytes) => {
                let expected = self.readers.get_mut(&id).unwrap();
                let end = expected.position + bytes.len();
                assert!(!bytes.is_empty() && end <= expected.end, "{expected:?}");
                let is_right = bytes == self.content.slice(expected.position..end);
                assert!(is_right || self.has_failures, "{expected:?}");
                expected.is_corrupt |= !is_right;
                expected.position = end;
            }
            ReadStep::Start(stream) => {
                self.streams.insert(stream, Upstream::default());
            }
            ReadStep::End => {
                let expected = self.readers.remove(&id).unwrap();
                assert_eq!(expected.position, expected.end);
                assert!(!expected.is_whole || !expected.is_corrupt, "{expected:?}");
                self.set.remove_reader(id);
            }
            ReadStep::Failed(error) => {
                assert!(self.has_failures, "{error}");
                self.leave(id);
            }
            ReadStep::Wait => return false,
        }
        true
    }

    fn leave(&mut self, id: ReaderId) {
        self.readers.remove(&id);
        self.set.remove_reader(id);
    }

    /// Lets a stream receive up to `max` bytes. Returns whether anything happened.
    fn advance(&mut self, id: StreamId, max: usize) -> bool {
        let size = SIZE as u64;
        let upstream = self.streams.get_mut(&id).unwrap();
        let Some((_, to)) = upstream.range else {
            let Some(plan) = self.set.plan(id, self.now) else {
                self.remove(id);
                return true;
            };
            let (from, to) = match plan {
                StreamPlan::Range { from, to } => (from, to.filter(|to| *to < size)),
                StreamPlan::Suffix(count) => (size - count, None),
            };
            (upstream.range, upstream.position) = (Some((from, to)), from);
            self.set.opened(id, (from, to), Some(size));
            upstream.hasher = self.set.prefix(id);
            return true;
        };
        if self.has_memory
            && let Some(bytes) = self.set.wanted_memory(id)
        {
            self.set.add_memory(id, bytes, None);
        }
        match self.set.room(id, self.now) {
            StreamRoom::Write => {}
            StreamRoom::Unused => {
                self.remove(id);
                return true;
            }
            StreamRoom::Wait(_) => return false,
            StreamRoom::HeldUp(slow) => {
                let time = Duration::from_millis(100);
                self.now += time;
                self.set.held_up(slow, time, self.now);
                return true;
            }
        }
        let (position, end) = (upstream.position, to.unwrap_or(size));
        if position < end {
            let end = end.min(position + max as u64);
            let mut bytes = self.content[position as usize..end as usize].to_vec();
            if upstream.is_corrupt {
                bytes[0] ^= 1;
            }
            if let Some(hasher) = &mut upstream.hasher {
                hasher.update(&bytes);
            }
            upstream.position = end;
            self.received += end - position;
            self.set.push(id, bytes.into(), upstream.hasher.clone());
            let stream = &self.set.streams[&id];
            assert!(stream.bytes <= stream.capacity);
            return true;
        }
        let hash = upstream.hasher.take().filter(|_| to.is_none());
        let expected = Digest::of(Algorithm::Sha256, &self.content);
        let result = match hash.map(Hasher::finish) {
            Some(actual) if actual != expected => Err(pierhead_cache::Error::WrongDigest {
                expected,
                actual: actual.into(),
                resumed: false,
            }
            .into()),
            _ => Ok(()),
        };
        self.streams.remove(&id);
        self.set.end(id, result);
        true
    }

    fn remove(&mut self, id: StreamId) {
        self.streams.remove(&id);
        self.set.remove_stream(id);
    }

    fn nth_reader(&self, nth: usize) -> Option<ReaderId> {
        let len = self.readers.len();
        self.readers.keys().nth(nth % len.max(1)).copied()
    }

    fn nth_stream(&self, nth: usize) -> Option<StreamId> {
        let len = self.streams.len();
        self.streams.keys().nth(nth % len.max(1)).copied()
    }

    /// Runs until all readers have ended.
    fn finish(&mut self) {
        let mut idle = 0;
        while !self.readers.is_empty() {
            let mut is_active = false;
            for id in self.readers.keys().copied().collect::<Vec<_>>() {
                is_active |= self.read(id, MAX_FRAME_BYTES);
            }
            for id in self.streams.keys().copied().collect::<Vec<_>>() {
                is_active |= self.advance(id, MAX_FRAME_BYTES);
            }
            idle = if is_active { 0 } else { idle + 1 };
            assert!(idle < 3, "nothing happens: {:?}", self.readers);
        }
        for id in self.streams.keys().copied().collect::<Vec<_>>() {
            self.advance(id, 1);
        }
        assert!(self.streams.is_empty());
        assert!(
            self.set.streams.is_empty(),
            "streams remain without readers"
        );
    }
}

/// A link of limited bandwidth, which all streams share.
const LINK_STEP: usize = 16 << 10;

/// Lets the streams receive one step of the link together. Readers read all they can.
fn step_of_link(simulation: &mut Simulation, nth: usize) {
    simulation.now += Duration::from_millis(10);
    for id in simulation.readers.keys().copied().collect::<Vec<_>>() {
        while simulation.read(id, MAX_FRAME_BYTES) {
            if !simulation.readers.contains_key(&id) {
                break;
            }
        }
    }
    let before = simulation.received;
    let ids: Vec<_> = simulation.streams.keys().copied().collect();
    for index in 0..ids.len() {
        let id = ids[(index + nth) % ids.len()];
        // A stream without a byte to receive takes no bandwidth.
        while simulation.streams.contains_key(&id) && simulation.received == before {
            if !simulation.advance(id, LINK_STEP) {
                break;
            }
        }
    }
}

/// Late clients cost at most the bytes that the link carried until the last client came, and one
/// window start.
#[test]
fn eight_clients_that_come_one_after_the_other_cost_what_the_link_carried() {
    let mut simulation = Simulation::new(false);
    let mut arrived_at = 0;
    let mut nth = 0;
    while simulation.readers.len() + nth == 0 || !simulation.readers.is_empty() {
        if nth % 6 == 0 && nth < 6 * 8 {
            simulation.add_reader(nth / 6, SelectedBytes::Whole);
            arrived_at = simulation.received;
        }
        step_of_link(&mut simulation, nth);
        nth += 1;
        assert!(nth < 10_000, "nothing happens: {:?}", simulation.readers);
    }
    simulation.finish();
    let size = SIZE as u64;
    assert!(arrived_at < size / 3);
    assert!(
        simulation.received <= size + 2 * arrived_at,
        "{} bytes of {size}, the last client came at {arrived_at}",
        simulation.received
    );
    // Without sharing, the clients would cost eight times the blob.
    assert!(simulation.received > size);
}

/// A client that comes near the end of the blob gets a download of its own, and nobody waits.
#[test]
fn a_client_that_comes_near_the_end_does_not_stop_the_first() {
    let mut simulation = Simulation::new(false);
    let first = simulation.add_reader(0, SelectedBytes::Whole);
    while simulation.received < 2 << 20 {
        step_of_link(&mut simulation, 0);
    }
    simulation.add_reader(1, SelectedBytes::Whole);
    let mut steps = 0;
    while simulation.readers.contains_key(&first) {
        step_of_link(&mut simulation, steps);
        steps += 1;
    }
    // The two streams share the link.
    assert!(steps <= 2 * (1 << 20) / LINK_STEP + 8, "{steps} steps");
    simulation.finish();
    assert_eq!(simulation.received, 2 * SIZE as u64);
}

/// A reader that does not read is detached after its allowance. Its stream goes on.
#[test]
fn a_reader_that_holds_up_another_is_detached() {
    let mut simulation = Simulation::new(false);
    let slow = simulation.add_reader(0, SelectedBytes::Whole);
    let fast = simulation.add_reader(1, SelectedBytes::Whole);
    simulation.read(slow, MAX_FRAME_BYTES);
    let mut steps = 0;
    while simulation.readers.contains_key(&fast) {
        simulation.read(fast, MAX_FRAME_BYTES);
        for id in simulation.streams.keys().copied().collect::<Vec<_>>() {
            simulation.advance(id, MAX_FRAME_BYTES);
        }
        steps += 1;
        assert!(steps < 1000, "the fast reader waits");
    }
    simulation.finish();
}

/// While nobody waits, a stream waits for its slow reader, and downloads nothing twice.
#[test]
fn a_slow_reader_alone_stays_attached() {
    let mut simulation = Simulation::new(false);
    let slow = simulation.add_reader(0, SelectedBytes::Whole);
    while simulation.readers.contains_key(&slow) {
        simulation.read(slow, MAX_FRAME_BYTES);
        for _ in 0..20 {
            for id in simulation.streams.keys().copied().collect::<Vec<_>>() {
                simulation.advance(id, MAX_FRAME_BYTES);
            }
        }
        simulation.now += Duration::from_secs(1);
    }
    assert_eq!(simulation.received, SIZE as u64);
}

#[derive(Clone, Debug)]
enum Operation {
    Whole(usize),
    Range(usize, usize, usize),
    Suffix(usize, usize),
    Read(usize, usize),
    Leave(usize),
    Advance(usize, usize),
    Fail(usize),
    Corrupt(usize),
    Wait(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let nth = || any::<usize>();
    prop_oneof![
        2 => nth().prop_map(Whole),
        2 => (nth(), 0..SIZE - 1, 1..SIZE).prop_map(|(client, first, len)| Range(client, first, len)),
        1 => (nth(), 1..SIZE).prop_map(|(client, count)| Suffix(client, count)),
        12 => (nth(), prop_oneof![Just(MAX_FRAME_BYTES), 1..MAX_FRAME_BYTES])
            .prop_map(|(reader, max)| Read(reader, max)),
        1 => nth().prop_map(Leave),
        12 => (nth(), 1..MAX_FRAME_BYTES).prop_map(|(stream, max)| Advance(stream, max)),
        1 => (0..20_000_u64).prop_map(Wait),
        1 => nth().prop_map(Fail),
        1 => nth().prop_map(Corrupt),
    ]
}

fn run(operations: Vec<Operation>, has_memory: bool, has_failures: bool) {
    let mut simulation = Simulation::new(has_memory);
    for operation in operations {
        match operation {
            Operation::Whole(client) => {
                simulation.add_reader(client, SelectedBytes::Whole);
            }
            Operation::Range(client, first, len) => {
                let end = Some((first + len).min(SIZE) as u64);
                let first = first as u64;
                simulation.add_reader(client, SelectedBytes::Range { first, end });
            }
            Operation::Suffix(client, count) => {
                simulation.add_reader(client, SelectedBytes::Suffix(count as u64));
            }
            Operation::Read(nth, max) => {
                if let Some(id) = simulation.nth_reader(nth) {
                    // The reader of a whole blob takes whole frames.
                    let is_whole = simulation.readers[&id].is_whole;
                    simulation.read(id, if is_whole { MAX_FRAME_BYTES } else { max });
                }
            }
            Operation::Leave(nth) => {
                if let Some(id) = simulation.nth_reader(nth) {
                    simulation.leave(id);
                }
            }
            Operation::Advance(nth, max) => {
                if let Some(id) = simulation.nth_stream(nth) {
                    simulation.advance(id, max);
                }
            }
            Operation::Fail(nth) if has_failures => {
                if let Some(id) = simulation.nth_stream(nth) {
                    simulation.has_failures = true;
                    simulation.streams.remove(&id);
                    simulation.set.end(id, Err(Error::Internal));
                }
            }
            Operation::Corrupt(nth) if has_failures => {
                if let Some(id) = simulation.nth_stream(nth) {
                    simulation.has_failures = true;
                    simulation.streams.get_mut(&id).unwrap().is_corrupt = true;
                }
            }
            Operation::Wait(millis) => simulation.now += Duration::from_millis(millis),
            Operation::Fail(_) | Operation::Corrupt(_) => {}
        }
    }
    simulation.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn each_reader_gets_its_bytes(
        operations in prop::collection::vec(operation(), 1..250),
        has_memory in any::<bool>(),
    ) {
        run(operations, has_memory, false);
    }

    #[test]
    fn no_whole_reader_ends_with_wrong_bytes(
        operations in prop::collection::vec(operation(), 1..250),
        has_memory in any::<bool>(),
    ) {
        run(operations, has_memory, true);
    }
}
