//! A link of a given delay and rate between two network namespaces: two tun devices, and threads that hand packets over.
//!
//! The packets are those of the kernel's own TCP, in the large pieces that a network card with segmentation offload
//! would get, so that slow start, windows and handshakes cost what they cost on a wire. A kernel without netem will do.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::namespace::Namespace;

/// Of the server's end.
pub(crate) const SERVER: &str = "10.213.77.1";
/// Of the client's.
pub(crate) const CLIENT: &str = "10.213.77.2";
/// Before each packet stands what the card would be told: 10 bytes.
const OFFLOAD_HEAD: usize = 10;
/// A packet and its head.
const LARGEST: usize = 65_536 + OFFLOAD_HEAD;
/// The least that waits for its turn at a slow link before packets are dropped.
const LEAST_QUEUE: f64 = 262_144.0;
/// Else the queue holds so many seconds, or a round trip if that is longer.
const QUEUE_SECONDS: f64 = 0.1;

/// No path is remembered from one run to the next.
pub(crate) const ONE_RUN_TEACHES_NONE: (&str, &str) = ("tcp_no_metrics_save", "1");

/// Both ends, and what is between them.
pub(crate) struct Link {
    pub(crate) server: Namespace,
    pub(crate) client: Namespace,
    shape: Arc<Shape>,
}

#[derive(Default)]
struct Shape {
    /// One way, in microseconds.
    delay: AtomicU64,
    /// Towards the client, in bytes a second; 0 is no limit.
    rate: AtomicU64,
    down: AtomicU64,
    up: AtomicU64,
}

/// Bytes with all headers.
#[derive(Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) down: u64,
    pub(crate) up: u64,
}

impl Link {
    /// As fast as it goes, until [`Link::set`]. Root only.
    pub(crate) fn up() -> Result<Self> {
        let (server, client) = (Namespace::new()?, Namespace::new()?);
        let shape = Arc::new(Shape::default());
        let (far, near) = (device(&server)?, device(&client)?);
        for (namespace, address) in [(&server, SERVER), (&client, CLIENT)] {
            configure(namespace, address)?;
        }
        carry(&far, &near, &shape, true);
        carry(&near, &far, &shape, false);
        Ok(Self {
            server,
            client,
            shape,
        })
    }

    /// From now on: half of the round trip each way, and the rate towards the client (0: none).
    pub(crate) fn set(&self, round_trip: Duration, mbit: u64) {
        let delay = u64::try_from(round_trip.as_micros() / 2).unwrap_or(u64::MAX);
        self.shape.delay.store(delay, Ordering::Relaxed);
        self.shape.rate.store(mbit * 125_000, Ordering::Relaxed);
    }

    /// So far.
    pub(crate) fn traffic(&self) -> Traffic {
        Traffic {
            down: self.shape.down.load(Ordering::Relaxed),
            up: self.shape.up.load(Ordering::Relaxed),
        }
    }
}

fn device(namespace: &Namespace) -> Result<Arc<SyncDevice>> {
    namespace.inside(|| {
        let device = DeviceBuilder::new()
            .name("link0")
            .offload(true)
            .inherit_enable_state()
            .build_sync();
        Ok(Arc::new(device.context("a tun device")?))
    })
}

fn configure(namespace: &Namespace, address: &str) -> Result<()> {
    namespace.ip(&format!(
        "addr add {address}/30 dev link0\nlink set link0 mtu 1500 txqueuelen 10000 up"
    ))?;
    namespace.ipv4(&[
        // What a fast path of 150 ms needs; the kernel's own limits are those of a small machine.
        ("tcp_rmem", "4096 131072 33554432"),
        ("tcp_wmem", "4096 65536 33554432"),
        ONE_RUN_TEACHES_NONE,
    ])
}

/// A packet, and when it arrives.
type Due = (Instant, Vec<u8>);

#[derive(Default)]
struct Queue {
    packets: Mutex<VecDeque<Due>>,
    more: Condvar,
}

/// Starts the threads of one direction. They end with the process.
fn carry(from: &Arc<SyncDevice>, to: &Arc<SyncDevice>, shape: &Arc<Shape>, down: bool) {
    let queue = Arc::new(Queue::default());
    let (out, sending) = (Arc::clone(to), Arc::clone(&queue));
    thread::spawn(move || send(&out, &sending));
    let (from, to, shape) = (Arc::clone(from), Arc::clone(to), Arc::clone(shape));
    thread::spawn(move || receive(&from, &to, &shape, &queue, down));
}

fn receive(from: &SyncDevice, to: &SyncDevice, shape: &Shape, queue: &Queue, down: bool) {
    let mut buffer = vec![0; LARGEST];
    let mut free = Instant::now();
    while let Ok(length) = from.recv(&mut buffer) {
        let packet = &buffer[..length];
        let now = Instant::now();
        let bytes = on_the_wire(packet);
        let delay = Duration::from_micros(shape.delay.load(Ordering::Relaxed));
        let rate = shape.rate.load(Ordering::Relaxed);
        let mut due = now;
        if down && rate > 0 {
            #[expect(clippy::cast_precision_loss, reason = "bytes a second, far below 2^52")]
            let (rate, bytes) = (rate as f64, bytes as f64);
            let start = free.max(now);
            let room = LEAST_QUEUE.max(rate * QUEUE_SECONDS.max(2.0 * delay.as_secs_f64()));
            if (start - now).as_secs_f64() * rate > room {
                continue;
            }
            free = start + Duration::from_secs_f64(bytes / rate);
            due = free;
        }
        let counter = if down { &shape.down } else { &shape.up };
        counter.fetch_add(bytes, Ordering::Relaxed);
        due += delay;
        let mut packets = lock(&queue.packets);
        if due <= now && packets.is_empty() {
            // A packet that the kernel refuses is a packet lost: TCP sends it again.
            let _ = to.send(packet);
        } else {
            packets.push_back((due, packet.to_vec()));
            queue.more.notify_one();
        }
    }
}

fn send(to: &SyncDevice, queue: &Queue) {
    let mut packets = lock(&queue.packets);
    loop {
        let now = Instant::now();
        match packets
            .front()
            .map(|(due, _)| due.saturating_duration_since(now))
        {
            None => {
                packets = queue
                    .more
                    .wait(packets)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            Some(Duration::ZERO) => {
                // Under the lock, so that none overtakes it.
                if let Some((_, packet)) = packets.pop_front() {
                    let _ = to.send(&packet);
                }
            }
            Some(left) => {
                drop(packets);
                thread::sleep(left);
                packets = lock(&queue.packets);
            }
        }
    }
}

/// Bytes after segmentation: each segment has headers of its own.
fn on_the_wire(packet: &[u8]) -> u64 {
    let word = |at: usize| {
        packet
            .get(at..at + 2)
            .map_or(0, |it| u64::from(u16::from_ne_bytes([it[0], it[1]])))
    };
    let bytes = packet.len().saturating_sub(OFFLOAD_HEAD) as u64;
    let (kind, headers, segment) = (packet.get(1).copied().unwrap_or(0), word(2), word(4));
    if kind == 0 || segment == 0 || headers == 0 || bytes <= headers {
        return bytes;
    }
    bytes + ((bytes - headers).div_ceil(segment) - 1) * headers
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
