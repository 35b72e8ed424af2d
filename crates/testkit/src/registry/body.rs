//! Sends a response body of the fake registry at the configured rate, until the end of the body or
//! until an injected fault.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::fault::{Fault, Gate};
use super::log::LoggedRequest;
use super::reply::{Framing, Reply};
use super::shared::Shared;
use super::wire::{Next, ServerConnection};

/// Size of one write in bytes. At 1 MB/s, a write takes less than 0.1 s.
const WRITE_SIZE: usize = 64 << 10;

/// Maximum delay for which a sender may compensate. Timers are about a millisecond late; without
/// compensation, this would slow down a fast link.
const MAX_CATCH_UP: Duration = Duration::from_millis(10);

enum Stop {
    Hang,
    Gate(Gate),
    Cut,
    Reset,
}

pub(super) async fn send(
    connection: &mut ServerConnection,
    reply: &Reply,
    faults: &[Fault],
    tracked: &LoggedRequest,
) -> io::Result<Next> {
    let _flight = reply
        .is_blob
        .then(|| Flight::new(connection.shared.clone()));
    let mut stops = stops(faults, reply.len);
    let slow = faults
        .iter()
        .filter_map(|fault| {
            if let Fault::Slow(rate) = fault {
                Some(*rate)
            } else {
                None
            }
        })
        .min();
    let mut body_free_at = Instant::now();
    let mut sent = 0;
    loop {
        while stops.first().is_some_and(|(at, _)| *at <= sent) {
            match stops.remove(0).1 {
                Stop::Hang => return connection.hang().await,
                Stop::Gate(gate) => connection.unless_gone(gate.pass()).await?,
                Stop::Cut => return Ok(Next::Cut),
                Stop::Reset => return Ok(Next::Reset),
            }
        }
        let left = stops
            .first()
            .map_or(reply.len, |(at, _)| reply.len.min(*at))
            - sent;
        if left == 0 {
            break;
        }
        let most = slow.map_or(WRITE_SIZE, |rate| {
            usize::try_from(rate / 20)
                .unwrap_or(WRITE_SIZE)
                .clamp(1, WRITE_SIZE)
        });
        let piece = reply.content.read(
            reply.start + sent,
            usize::try_from(left).unwrap_or(most).min(most),
        );
        if reply.framing == Framing::Chunked {
            connection
                .write(format!("{:x}\r\n", piece.len()).as_bytes())
                .await?;
            connection.write(&piece).await?;
            connection.write(b"\r\n").await?;
        } else {
            connection.write(&piece).await?;
        }
        tracked.sent(piece.len());
        sent += piece.len() as u64;
        let shared = connection.shared.clone();
        connection
            .unless_gone(pace(&shared, piece.len(), slow, &mut body_free_at))
            .await?;
    }
    if reply.framing == Framing::Chunked {
        connection.write(b"0\r\n\r\n").await?;
    }
    Ok(match reply.framing {
        Framing::Length(promised) if promised > reply.len => Next::Cut,
        Framing::UntilClose => Next::Close,
        _ => Next::KeepAlive,
    })
}

/// Returns the stops that the faults cause in the body, in the order of their offsets. A stop
/// beyond the end of the body has no effect.
fn stops(faults: &[Fault], len: u64) -> Vec<(u64, Stop)> {
    let stop = |fault: &Fault| match fault {
        Fault::HangBody(after) => Some((*after, Stop::Hang)),
        Fault::GateBody(after, gate) => Some((*after, Stop::Gate(gate.clone()))),
        Fault::CutBody(after) => Some((*after, Stop::Cut)),
        Fault::ResetBody(after) => Some((*after, Stop::Reset)),
        _ => None,
    };
    let mut stops: Vec<_> = faults
        .iter()
        .filter_map(stop)
        .filter(|(at, _)| *at <= len)
        .collect();
    stops.sort_by_key(|(at, _)| *at);
    stops
}

/// Waits until the rates of the shared link and of this body allow `bytes` more.
async fn pace(shared: &Shared, bytes: usize, slow: Option<u64>, body_free_at: &mut Instant) {
    let now = Instant::now();
    let cost = |rate: u64| Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
    let earliest = now.checked_sub(MAX_CATCH_UP).unwrap_or(now);
    let mut until = now;
    if let Some(rate) = slow {
        *body_free_at = (*body_free_at).max(earliest) + cost(rate);
        until = until.max(*body_free_at);
    }
    if let Some(rate) = shared.settings.lock().bandwidth {
        let mut free = shared.link_free_at.lock();
        *free = (*free).max(earliest) + cost(rate);
        until = until.max(*free);
    }
    if until > now {
        tokio::time::sleep_until(until).await;
    }
}

/// Counts the body of a blob as being sent, until this value is dropped.
struct Flight(std::sync::Arc<Shared>);

impl Flight {
    fn new(shared: std::sync::Arc<Shared>) -> Self {
        let now = shared.blobs_in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        shared.peak_blobs_in_flight.fetch_max(now, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.blobs_in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}
