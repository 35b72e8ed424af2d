//! `pierhead diff`.

use std::collections::HashSet;
use std::io::{self, Read as _, Write as _};

use pierhead_bundle::Coding;
use pierhead_bundle::format::Event;
use pierhead_oci::units::human_bytes;
use pierhead_toc::{FileDigest, Table};
use pierhead_worker::store::wanted;
use serde::Serialize;

use super::seen::{Place, Seen, Tables, is_sent, visible};
use crate::cli::worker::DiffArgs;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::worker::Error;
use crate::worker::session::Session;

/// The object of `--json`.
#[derive(Serialize)]
struct Report {
    old: String,
    new: String,
    /// Layers that OLD does not have, compressed: what any client pulls.
    layers: Moved,
    /// Contents that OLD does not have, as they are.
    files: Moved,
    /// What really moves; only with a server to ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    bundle: Option<Bundle>,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Moved {
    count: u64,
    bytes: u64,
}

#[derive(Default, Serialize)]
struct Bundle {
    /// Of all, its header included.
    bytes: u64,
    header: u64,
    /// Frames whose contents stand alone, and the bytes of their records.
    full: Moved,
    /// The same against old contents.
    patched: Moved,
    /// Frames out of parts of old contents: the bytes are those that need not move.
    chunked: Moved,
}

/// Runs it.
pub(crate) fn run(args: &DiffArgs, environment: &Environment) -> Result<(), Failure> {
    let place = Place::new(&args.look, environment)?;
    let old = place.see(&args.old)?;
    let bundle = match &place.session {
        Some(session) => Some(measure(&place, session, args, &old)?),
        None => None,
    };
    let new = place.see(&args.new)?;
    let had: HashSet<_> = old.layers.iter().map(|layer| layer.digest).collect();
    let missing = new
        .layers
        .iter()
        .filter(|layer| !had.contains(&layer.digest));
    let report = Report {
        layers: sum(missing.map(|layer| layer.size)),
        files: sum(fresh(&old.table, &new.table)),
        bundle,
        old: old.image.to_string(),
        new: new.image.to_string(),
    };
    print(&report, args.look.json)?;
    Ok(())
}

/// Sizes of what the new tree has and the old one has not.
fn fresh<'a>(old: &Table, new: &'a Table) -> impl Iterator<Item = u64> + use<'a> {
    let had: HashSet<FileDigest> = visible(old).map(|(content, _)| content).collect();
    visible(new)
        .filter(move |(content, _)| !had.contains(content))
        .map(|(_, size)| size)
}

fn sum(sizes: impl Iterator<Item = u64>) -> Moved {
    sizes.fold(Moved::default(), |moved, size| Moved {
        count: moved.count + 1,
        bytes: moved.bytes + size,
    })
}

/// Receives the bundle of the update and keeps nothing of it.
fn measure(place: &Place, session: &Session, args: &DiffArgs, old: &Seen) -> Result<Bundle, Error> {
    let mut began = place.bundle(session, &args.new, vec![old.digest])?;
    let table = wanted(&began.header, &[Some(&old.table)])?;
    let sizes = Tables {
        want: &table,
        have: Some(&old.table),
    };
    let header = u64::from(began.prelude.body);
    let mut bundle = Bundle {
        header,
        bytes: header,
        ..Bundle::default()
    };
    for frame in began.header.frames.cursor(&sizes)? {
        let frame = frame?;
        if !is_sent(frame.coding) {
            bundle.chunked.count += 1;
            bundle.chunked.bytes += frame.members.iter().map(|member| member.len).sum::<u64>();
        }
    }
    let mut count = |event: Event| {
        if let Event::Record {
            coding, payload, ..
        } = event
        {
            let bytes = u64::try_from(payload.len()).unwrap_or(u64::MAX);
            bundle.bytes += bytes;
            let moved = match coding {
                Coding::Patch => &mut bundle.patched,
                _ => &mut bundle.full,
            };
            moved.count += 1;
            moved.bytes += bytes;
        }
    };
    let mut piece = vec![0; 64 << 10];
    let mut bytes = &began.rest[..];
    loop {
        while let Some(event) = began.decoder.feed(&mut bytes)? {
            count(event);
        }
        let doing = "the bundle was cut: try again";
        match began.from.read(&mut piece).map_err(Error::cut(doing))? {
            0 if began.decoder.is_ended() => return Ok(bundle),
            0 => return Err(Error::cut(doing)(io::ErrorKind::UnexpectedEof.into())),
            read => bytes = &piece[..read],
        }
    }
}

fn print(report: &Report, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report)?;
        return out.write_all(b"\n");
    }
    writeln!(out, "from     {}\nto       {}", report.old, report.new)?;
    let mut line = |what: &str, bytes: u64, rest: String| {
        writeln!(out, "{what:8} {:>10}  {rest}", human_bytes(bytes))
    };
    line(
        "layers",
        report.layers.bytes,
        format!("{} layers, compressed", report.layers.count),
    )?;
    line(
        "files",
        report.files.bytes,
        format!("{} whole files, as they are", report.files.count),
    )?;
    if let Some(bundle) = &report.bundle {
        line(
            "bundle",
            bundle.bytes,
            format!("of it {} are its header", human_bytes(bundle.header)),
        )?;
        line(
            "  full",
            bundle.full.bytes,
            format!("{} frames of new content", bundle.full.count),
        )?;
        line(
            "  patch",
            bundle.patched.bytes,
            format!("{} frames against old content", bundle.patched.count),
        )?;
        line(
            "  chunks",
            0,
            format!(
                "{} that are here already, in {} frames",
                human_bytes(bundle.chunked.bytes),
                bundle.chunked.count
            ),
        )?;
    }
    Ok(())
}
