//! Emulates a network link with a delay and a rate between two network namespaces, by two tun
//! devices and threads that forward packets. The kernel's own TCP sends the packets, in large
//! segments as for a network card with segmentation offload. Therefore slow start, windows and
//! handshakes behave as on a real link. The emulation does not need the kernel module netem.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tun_rs::{DeviceBuilder, SyncDevice};

use pierhead_tests::namespace::Network;

/// Address of the server's end of the link.
pub(crate) const SERVER: &str = "10.213.77.1";
/// Address of the client's end of the link.
pub(crate) const CLIENT: &str = "10.213.77.2";
/// Size of the offload header before each packet, in bytes.
const OFFLOAD_HEADER_SIZE: usize = 10;
/// Maximum size of a packet with its header, in bytes.
const MAX_PACKET_SIZE: usize = 65_536 + OFFLOAD_HEADER_SIZE;
/// Minimum size of the queue of a slow link in bytes. The link drops packets when the queue is
/// full.
const MIN_QUEUE_SIZE: f64 = 262_144.0;
/// Size of the queue, in seconds at the link's rate. The queue has space for at least one round
/// trip.
const QUEUE_SECONDS: f64 = 0.1;

/// The sysctl that disables the TCP metrics cache, so that runs do not affect each other.
pub(crate) const NO_METRICS_SAVE: (&str, &str) = ("tcp_no_metrics_save", "1");

/// An emulated network link: both ends, and the properties of the link.
pub(crate) struct Link {
    pub(crate) server: Network,
    pub(crate) client: Network,
    shape: Arc<Shape>,
}

#[derive(Default)]
struct Shape {
    /// One-way delay in microseconds.
    delay: AtomicU64,
    /// Rate to the client in bytes per second; 0: no limit.
    rate: AtomicU64,
    down: AtomicU64,
    up: AtomicU64,
}

/// Transferred bytes, including all headers.
#[derive(Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) down: u64,
    pub(crate) up: u64,
}

impl Link {
    /// Creates a link without delay or rate limit, until the caller sets them by [`Link::set`].
    /// Needs root.
    pub(crate) fn up() -> Result<Self> {
        let (server, client) = (Network::new()?, Network::new()?);
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

    /// Sets the round-trip time, and the rate to the client in Mbit/s (0: no limit).
    pub(crate) fn set(&self, round_trip: Duration, mbit: u64) {
        let delay = u64::try_from(round_trip.as_micros() / 2).unwrap_or(u64::MAX);
        self.shape.delay.store(delay, Ordering::Relaxed);
        self.shape.rate.store(mbit * 125_000, Ordering::Relaxed);
    }

    /// The bytes that the link has transferred so far.
    pub(crate) fn traffic(&self) -> Traffic {
        Traffic {
            down: self.shape.down.load(Ordering::Relaxed),
            up: self.shape.up.load(Ordering::Relaxed),
        }
    }
}

fn device(namespace: &Network) -> Result<Arc<SyncDevice>> {
    namespace.inside(|| {
        let device = DeviceBuilder::new()
            .name("link0")
            .offload(true)
            .inherit_enable_state()
            .build_sync();
        Ok(Arc::new(device.context("a tun device")?))
    })
}

fn configure(namespace: &Network, address: &str) -> Result<()> {
    namespace.ip(&format!(
        "addr add {address}/30 dev link0\nlink set link0 mtu 1500 txqueuelen 10000 up"
    ))?;
    namespace.ipv4(&[
        // Sets large socket buffers, for a fast link with a round-trip time of 150 ms. The kernel's
        // defaults are too small.
        ("tcp_rmem", "4096 131072 33554432"),
        ("tcp_wmem", "4096 65536 33554432"),
        NO_METRICS_SAVE,
    ])
}

/// A packet and its arrival time.
type Due = (Instant, Vec<u8>);

#[derive(Default)]
struct Queue {
    packets: Mutex<VecDeque<Due>>,
    more: Condvar,
}

/// Starts the threads of one direction, which end with the process.
fn carry(from: &Arc<SyncDevice>, to: &Arc<SyncDevice>, shape: &Arc<Shape>, down: bool) {
    let queue = Arc::new(Queue::default());
    let (out, sending) = (Arc::clone(to), Arc::clone(&queue));
    thread::spawn(move || send(&out, &sending));
    let (from, to, shape) = (Arc::clone(from), Arc::clone(to), Arc::clone(shape));
    thread::spawn(move || receive(&from, &to, &shape, &queue, down));
}

fn receive(from: &SyncDevice, to: &SyncDevice, shape: &Shape, queue: &Queue, down: bool) {
    let mut buffer = vec![0; MAX_PACKET_SIZE];
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
            let room = MIN_QUEUE_SIZE.max(rate * QUEUE_SECONDS.max(2.0 * delay.as_secs_f64()));
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
            // If the kernel refuses a packet, the packet is lost and TCP sends it again.
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
                queue.more.wait(&mut packets);
            }
            Some(Duration::ZERO) => {
                // The lock keeps the packets in order.
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

/// Size of a packet after segmentation, with the headers of each segment.
fn on_the_wire(packet: &[u8]) -> u64 {
    let word = |at: usize| {
        packet
            .get(at..at + 2)
            .map_or(0, |it| u64::from(u16::from_ne_bytes([it[0], it[1]])))
    };
    let bytes = packet.len().saturating_sub(OFFLOAD_HEADER_SIZE) as u64;
    let (kind, headers, segment) = (packet.get(1).copied().unwrap_or(0), word(2), word(4));
    if kind == 0 || segment == 0 || headers == 0 || bytes <= headers {
        return bytes;
    }
    bytes + ((bytes - headers).div_ceil(segment) - 1) * headers
}

fn lock<T>(mutex: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    mutex.lock()
}
