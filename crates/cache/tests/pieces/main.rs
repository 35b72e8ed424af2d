//! Tests of pieces: ranges of a blob that claims fetch ahead of the front stream of a fill.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

#[path = "../common/mod.rs"]
mod common;

mod claims;
mod ends;
mod front;
mod records;
mod resume;

use std::ops::Range;

use bytes::Bytes;
use common::{blob, lead};
use pierhead_cache::{Cache, Error, Fill, PieceWriter, Pieces, TailReader};

const MIB: u64 = 1 << 20;

/// Returns the bytes of `content` in this range.
fn part(content: &Bytes, range: Range<u64>) -> Bytes {
    content.slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap())
}

/// Polls the future once.
async fn at_once<F: Future>(future: F) -> Option<F::Output> {
    tokio::select! { biased; done = future => Some(done), () = std::future::ready(()) => None }
}

/// Writes the next `len` bytes of a claim.
async fn write(claim: &mut PieceWriter, content: &Bytes, len: u64) -> Result<(), Error> {
    let start = claim.position();
    let end = (start + len).min(content.len() as u64);
    claim.write(part(content, start..end)).await
}

/// Writes all bytes of a claim.
async fn fetch(mut claim: PieceWriter, content: &Bytes) -> Result<Range<u64>, Error> {
    let start = claim.position();
    while claim.position() < claim.end() {
        write(&mut claim, content, 100_000).await?;
    }
    let range = start..claim.position();
    claim.finish().await?;
    Ok(range)
}

/// Writes the bytes of the front stream until it stands before a piece, or until `end`.
async fn stream(fill: &mut Fill, content: &Bytes, end: u64) -> Result<(), Error> {
    loop {
        let front = fill.front();
        let next = front.start..front.end.min(front.start + 70_000).min(end);
        if next.is_empty() {
            return Ok(());
        }
        fill.write(part(content, next)).await?;
    }
}

/// Streams the front and passes all pieces, until the fill has all bytes.
async fn complete(mut fill: Fill, content: &Bytes) -> Result<(), Error> {
    let size = content.len() as u64;
    while fill.front().start < size {
        stream(&mut fill, content, size).await?;
        fill.pass_pieces().await?;
    }
    fill.finish().await.map(drop)
}

/// Reads a whole range of a running fill.
async fn read(tail: &TailReader, range: Range<u64>) -> Result<Bytes, Error> {
    let reader = tail.for_range(range.clone());
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < range.end - range.start {
        let rest = range.end - range.start - bytes.len() as u64;
        let offset = range.start + bytes.len() as u64;
        let max = usize::try_from(rest).unwrap();
        bytes.extend_from_slice(&reader.read_at(offset, max).await?);
    }
    Ok(bytes.into())
}

async fn started(cache: &Cache, seed: u64, size: u64) -> (Fill, TailReader, Pieces, Bytes) {
    let (digest, content) = blob(seed, usize::try_from(size).unwrap());
    let (mut fill, tail) = lead(cache, &digest).await;
    fill.begin(Some(size)).await.unwrap();
    let pieces = fill.pieces();
    (fill, tail, pieces, content)
}
