//! Measures the size of an update from one image of an OCI layout to another, and its CPU time,
//! without a daemon: `delta LAYOUT OLD NEW [LEVEL] [-v]`.
//!
//! The program holds both images in memory. OLD and NEW are names in the annotation
//! `org.opencontainers.image.ref.name` of the layout.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pierhead_bundle::RECORD_HEAD;
use pierhead_bundle::patch::{Effort, Level};
use pierhead_bundle_server::plan::{Expected, prepare};
use pierhead_testkit::layout::OciLayout;
use pierhead_toc::image_toc::{LayerEntries, compress};
use pierhead_toc::{Entry, FileDigest, ImageToc, Kind, Source, Time};
use pierhead_toc::{TocView, Tree};

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

struct Memory(HashMap<FileDigest, Vec<u8>>);

impl Source for Memory {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        Ok(self.0.get(content).map(|bytes| bytes.len() as u64))
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.get(content).ok_or(io::ErrorKind::NotFound)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(buf.len());
        buf.copy_from_slice(bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

fn main() -> Fallible<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [layout, old, new, rest @ ..] = args.as_slice() else {
        return Err("usage: delta LAYOUT OLD NEW [LEVEL] [-v]".into());
    };
    let level = rest.first().and_then(|level| level.parse().ok());
    let verbose = rest.iter().any(|arg| arg == "-v");
    let layout = PathBuf::from(layout);
    let mut source = Memory(HashMap::new());
    let base_image = image(&layout, old, &mut source)?;
    let want = image(&layout, new, &mut source)?;
    let toc = compress(&want, Some(&base_image), 19)?.len();
    let start = cpu_seconds()?;
    let (mut sent, mut frames, mut plain) = (toc, 0, 0);
    let mut by: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    let effort = level.map_or(Effort::Idle, |level| Effort::Level(Level::new(level)));
    let (base_image, want) = (
        TocView::with_layers(&base_image),
        TocView::with_layers(&want),
    );
    let names = Tree::of(want)?;
    let expected = Expected::default();
    prepare(
        want,
        base_image,
        &expected,
        &source,
        effort,
        &mut |_| Ok(()),
        &mut |frame, coded| {
            let bytes: u64 = frame.members.iter().map(|member| member.len).sum();
            let bases: u64 = frame.bases.iter().map(|base| base.slice.len).sum();
            let entry = by.entry(format!("{:?}", frame.coding)).or_default();
            entry.0 += bytes;
            entry.1 += coded.payload.len();
            frames += 1;
            sent += coded.payload.len() + RECORD_HEAD;
            plain += bytes;
            if verbose {
                let first = frame.members.first().map_or(0, |member| member.content);
                let name = names.files().find(|(_, number)| *number == first);
                let path = name.map_or(&b""[..], |(at, _)| names.path(at));
                println!(
                    "{:9} <- {bytes:9} of {:5} against {bases:9} of {:5} {}",
                    coded.payload.len(),
                    frame.members.len(),
                    frame.bases.len(),
                    String::from_utf8_lossy(path)
                );
            }
            Ok(())
        },
    )?;
    println!(
        "{old} {new}: {plain} bytes in {sent} of which {toc} are the TOC, {frames} frames, {:.1} CPU-s {by:?}",
        cpu_seconds()? - start
    );
    Ok(())
}

/// Returns the CPU time in seconds of this thread, which does all the work.
fn cpu_seconds() -> Fallible<f64> {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: f64 = line.split(' ').next().unwrap_or_default().parse()?;
    Ok(nanoseconds / 1e9)
}

fn image(layout: &Path, name: &str, source: &mut Memory) -> Fallible<ImageToc> {
    let mut layers = Vec::new();
    for layer in OciLayout::new(layout).layers(name, "amd64")? {
        let (path, digest) = (layer.path, layer.diff_id);
        let entries = entries(&path, source)?;
        let files: Vec<(FileDigest, u64)> = entries
            .iter()
            .filter_map(|entry| match entry.kind {
                Kind::File { content, size } => Some((content, size)),
                _ => None,
            })
            .collect();
        layers.push(LayerEntries {
            // Placeholders: the values of these fields do not change the measured sizes and times.
            diff_id: digest,
            skeleton: (FileDigest::of(b""), 0),
            files: files.into_iter().map(Ok),
            entries: entries.into_iter().map(Ok),
        });
    }
    Ok(ImageToc::merge(layers)?)
}

fn entries(path: &Path, source: &mut Memory) -> Fallible<Vec<Entry>> {
    let mut archive = tar::Archive::new(flate2::read::MultiGzDecoder::new(File::open(path)?));
    let mut entries = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let clean = |path: &[u8]| {
            let path = path.strip_prefix(b"./").unwrap_or(path);
            path.strip_suffix(b"/").unwrap_or(path).to_vec()
        };
        let path = clean(&entry.path_bytes());
        let target = entry.link_name_bytes().map(|target| target.into_owned());
        let target = target.unwrap_or_default();
        let kind = match entry.header().entry_type() {
            tar::EntryType::Directory => Kind::Directory,
            tar::EntryType::Symlink => Kind::Symlink { target },
            tar::EntryType::Link => Kind::HardLink {
                target: clean(&target),
            },
            tar::EntryType::Regular => {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes)?;
                let content = FileDigest::of(&bytes);
                let size = bytes.len() as u64;
                source.0.entry(content).or_insert(bytes);
                Kind::File { content, size }
            }
            _ => continue,
        };
        let header = entry.header();
        entries.push(Entry {
            path: if path == b"." { Vec::new() } else { path },
            kind,
            mode: header.mode()? & 0o7777,
            uid: u32::try_from(header.uid()?)?,
            gid: u32::try_from(header.gid()?)?,
            modified: Time {
                seconds: i64::try_from(header.mtime()?)?,
                nanos: 0,
            },
            xattrs: Vec::new(),
        });
    }
    Ok(entries)
}
