//! Runs `pierhead inspect` and `pierhead diff`: turns flags into options of the crate
//! `pierhead-worker`, and prints the report that this crate returns.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use pierhead_bundle::api::{OrderSource, StartOrder};
use pierhead_oci::units::human_bytes;
use pierhead_worker::inspect::{self, DiffReport, ImageSource, InspectReport};
use pierhead_worker::store::Store;
use serde::Serialize;

use super::args::{DiffArgs, InspectArgs, SourceArgs};
use super::progress::TerminalProgress;
use super::server::{platform, server};

use crate::cli::exit_code::CommandError;
use crate::config::environment::Environment;

/// Runs the command `pierhead inspect`.
pub(crate) fn inspect(args: &InspectArgs, environment: &Environment) -> Result<(), CommandError> {
    let source = source(&args.source, environment)?;
    let progress = TerminalProgress::notes_only();
    let report = inspect::inspect(&source, &args.image, &progress)?;
    print(&report, image_text(&report), args.source.json)?;
    Ok(())
}

/// Runs the command `pierhead diff`.
pub(crate) fn diff(args: &DiffArgs, environment: &Environment) -> Result<(), CommandError> {
    let source = source(&args.source, environment)?;
    let progress = TerminalProgress::notes_only();
    let report = inspect::diff(&source, &args.old, &args.new, &progress)?;
    print(&report, diff_text(&report), args.source.json)?;
    Ok(())
}

fn source(args: &SourceArgs, environment: &Environment) -> Result<ImageSource, CommandError> {
    let server = match &args.via {
        Some(via) => Some(server(via, &args.login, environment)?),
        None => None,
    };
    let store = match &args.from {
        Some(folder) if !folder.join("version").exists() => {
            let shown = folder.display();
            return Err(CommandError::Usage(format!(
                "{shown} is not a store of `pierhead pull`"
            )));
        }
        Some(folder) => Some(Store::open(folder, &[])?),
        None => None,
    };
    let platform = platform(args.platform.as_ref());
    Ok(ImageSource::new(server.as_ref(), store, platform)?)
}

/// Prints the report as one line of JSON, or its text.
fn print(report: &impl Serialize, text: String, json: bool) -> io::Result<()> {
    let text = match json {
        true => serde_json::to_string(report)? + "\n",
        false => text,
    };
    io::stdout().lock().write_all(text.as_bytes())
}

fn image_text(report: &InspectReport) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "image     {}", report.image);
    let _ = writeln!(out, "digest    {}", report.digest);
    let (bytes, compressed) = (
        human_bytes(report.bytes),
        human_bytes(report.bytes_compressed),
    );
    let _ = writeln!(
        out,
        "tree      {} entries, {} different contents, {bytes}",
        report.entries, report.contents
    );
    let _ = writeln!(
        out,
        "layers    {}, {compressed} as they are pulled",
        report.layers.len()
    );
    for layer in &report.layers {
        let (compressed, uncompressed) = (
            human_bytes(layer.bytes_compressed),
            human_bytes(layer.bytes),
        );
        let _ = writeln!(
            out,
            "  {}  {compressed:>10}  {:>6} files  {uncompressed:>10}",
            layer.digest, layer.files
        );
    }
    if !report.shared.is_empty() {
        let _ = writeln!(out, "shared with");
    }
    for shared in &report.shared {
        let bytes = human_bytes(shared.bytes);
        let _ = writeln!(
            out,
            "  {bytes:>10}  {:>6} contents  {}",
            shared.contents, shared.image
        );
    }
    if let Some(order) = &report.start_order {
        out.push_str(&start_order_lines(order));
    }
    for path in &report.hot {
        let _ = writeln!(out, "  {}", path.escape_debug());
    }
    out
}

/// Returns the lines that `pierhead inspect` prints above the list of files in start order (the
/// order in which a starting container opens the files).
fn start_order_lines(order: &StartOrder) -> String {
    let source = match &order.source {
        OrderSource::Trace { image, clients } => {
            let by = match clients {
                Some(1) => " by 1 client".to_owned(),
                Some(clients) => format!(" by {clients} clients"),
                None => String::new(),
            };
            format!("starts of {image} recorded{by} (pierhead trace)")
        }
        OrderSource::Config => {
            "the command of the config, its interpreters and libraries".to_owned()
        }
        _ => "unknown to this version".to_owned(),
    };
    let applied = match order.applied {
        true => "bundles carry these files first",
        false => "bundles do not have this order yet",
    };
    let compressed = match order.layers_waiting {
        0 => "all layers are optimized".to_owned(),
        waiting => format!("{waiting} of {} layers wait to be optimized", order.layers),
    };
    format!(
        "start order  {} files\n  source     {source}\n  prepared   {applied}; {compressed}\n",
        order.files.len()
    )
}

fn diff_text(report: &DiffReport) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "from     {}\nto       {}", report.old, report.new);
    let mut line = |what: &str, bytes: u64, rest: String| {
        let _ = writeln!(out, "{what:8} {:>10}  {rest}", human_bytes(bytes));
    };
    line(
        "layers",
        report.layers.bytes,
        format!("{} layers, compressed", report.layers.count),
    );
    line(
        "files",
        report.files.bytes,
        format!("{} whole files, as they are", report.files.count),
    );
    if let Some(bundle) = &report.bundle {
        line(
            "bundle",
            bundle.bytes,
            format!("of it {} are its header", human_bytes(bundle.header)),
        );
        line(
            "  full",
            bundle.full.bytes,
            format!("{} frames of new content", bundle.full.count),
        );
        line(
            "  patch",
            bundle.patched.bytes,
            format!("{} frames against old content", bundle.patched.count),
        );
        line(
            "  chunks",
            0,
            format!(
                "{} that this host already has, in {} frames",
                human_bytes(bundle.chunked.bytes),
                bundle.chunked.count
            ),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use pierhead_oci::{Algorithm, Digest};

    use pierhead_worker::inspect::{BundleSize, LayerSummary, SharedContents, TransferSize};

    use super::*;

    #[test]
    fn the_text_of_an_image_has_its_layers_and_shared_contents() {
        let mut report = InspectReport {
            image: "docker.io/library/redis:7".to_owned(),
            digest: "sha256:00".to_owned(),
            entries: 120,
            contents: 90,
            bytes: 9 << 20,
            bytes_compressed: 3 << 20,
            layers: vec![LayerSummary {
                digest: "sha256:11".to_owned(),
                diff_id: "sha256:22".to_owned(),
                media_type: "tar".to_owned(),
                bytes_compressed: 3 << 20,
                files: 100,
                bytes: 9 << 20,
            }],
            shared: Vec::new(),
            hot: Vec::new(),
            start_order: None,
        };
        let expected = "\
image     docker.io/library/redis:7
digest    sha256:00
tree      120 entries, 90 different contents, 9.0 MiB
layers    1, 3.0 MiB as they are pulled
  sha256:11     3.0 MiB     100 files     9.0 MiB
";
        assert_eq!(image_text(&report), expected);
        report.shared.push(SharedContents {
            image: "docker.io/library/redis:6".to_owned(),
            contents: 70,
            bytes: 1 << 20,
        });
        // The path comes from the image, so it may contain control characters.
        report.hot = vec!["bin/sh".to_owned(), "tmp/\u{1b}[2J".to_owned()];
        let text = image_text(&report);
        let added = "\
shared with
     1.0 MiB      70 contents  docker.io/library/redis:6
  bin/sh
  tmp/\\u{1b}[2J
";
        assert_eq!(text, format!("{expected}{added}"));
    }

    #[test]
    fn the_text_of_a_diff_has_one_line_per_method() {
        let size = |count, bytes| TransferSize { count, bytes };
        let mut report = DiffReport {
            old: "redis:7.0".to_owned(),
            new: "redis:7.2".to_owned(),
            layers: size(3, 12 << 20),
            files: size(40, 9 << 20),
            bundle: None,
        };
        let expected = "\
from     redis:7.0
to       redis:7.2
layers     12.0 MiB  3 layers, compressed
files       9.0 MiB  40 whole files, as they are
";
        assert_eq!(diff_text(&report), expected);
        report.bundle = Some(BundleSize {
            bytes: 1 << 20,
            header: 4096,
            full: size(5, 512 << 10),
            patched: size(7, 256 << 10),
            chunked: size(2, 128 << 10),
        });
        let added = "\
bundle      1.0 MiB  of it 4.0 KiB are its header
  full    512.0 KiB  5 frames of new content
  patch   256.0 KiB  7 frames against old content
  chunks        0 B  128.0 KiB that this host already has, in 2 frames
";
        assert_eq!(diff_text(&report), format!("{expected}{added}"));
    }

    #[test]
    fn the_text_has_the_source_and_the_state_of_a_start_order() {
        let image = Digest::of(Algorithm::Sha256, b"image");
        let mut order = StartOrder {
            source: OrderSource::Trace {
                image,
                clients: Some(2),
            },
            files: vec!["bin/sh".to_owned(), "etc/passwd".to_owned()],
            applied: false,
            layers: 3,
            layers_waiting: 1,
        };
        let expected = format!(
            "start order  2 files\n  source     starts of {image} recorded by 2 clients (pierhead trace)\n  \
             prepared   bundles do not have this order yet; 1 of 3 layers wait to be optimized\n"
        );
        assert_eq!(start_order_lines(&order), expected);
        (order.applied, order.layers_waiting) = (true, 0);
        order.source = OrderSource::Config;
        let text = start_order_lines(&order);
        assert!(
            text.contains("carry these files first; all layers are optimized"),
            "{text}"
        );
        assert!(text.contains("the command of the config"), "{text}");
    }
}
