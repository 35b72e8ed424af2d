//! Runs `pierhead inspect` and `pierhead diff`: turns flags into options of the crate
//! `pierhead-worker`, and prints the report that this crate returns.

use std::io::{self, Write as _};

use pierhead_bundle::api::{OrderSource, StartOrder};
use pierhead_oci::units::human_bytes;
use pierhead_worker::inspect::{self, DiffReport, ImageSource, InspectReport};
use pierhead_worker::store::Store;

use super::args::{DiffArgs, InspectArgs, SourceArgs};
use super::progress::TerminalProgress;
use super::server::{platform, server};

use crate::environment::Environment;
use crate::exit_code::CommandError;

/// Runs the command `pierhead inspect`.
pub(crate) fn inspect(args: &InspectArgs, environment: &Environment) -> Result<(), CommandError> {
    let source = source(&args.source, environment)?;
    let progress = TerminalProgress::notes_only();
    let report = inspect::inspect(&source, &args.image, &progress)?;
    print_image(&report, args.source.json)?;
    Ok(())
}

/// Runs the command `pierhead diff`.
pub(crate) fn diff(args: &DiffArgs, environment: &Environment) -> Result<(), CommandError> {
    let source = source(&args.source, environment)?;
    let progress = TerminalProgress::notes_only();
    let report = inspect::diff(&source, &args.old, &args.new, &progress)?;
    print_diff(&report, args.source.json)?;
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

fn print_image(report: &InspectReport, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report)?;
        return out.write_all(b"\n");
    }
    writeln!(out, "image     {}", report.image)?;
    writeln!(out, "digest    {}", report.digest)?;
    let (bytes, compressed) = (
        human_bytes(report.bytes),
        human_bytes(report.bytes_compressed),
    );
    writeln!(
        out,
        "tree      {} entries, {} different contents, {bytes}",
        report.entries, report.contents
    )?;
    writeln!(
        out,
        "layers    {}, {compressed} as they are pulled",
        report.layers.len()
    )?;
    for layer in &report.layers {
        let (compressed, uncompressed) = (
            human_bytes(layer.bytes_compressed),
            human_bytes(layer.bytes),
        );
        writeln!(
            out,
            "  {}  {compressed:>10}  {:>6} files  {uncompressed:>10}",
            layer.digest, layer.files
        )?;
    }
    if !report.shared.is_empty() {
        writeln!(out, "shared with")?;
    }
    for shared in &report.shared {
        let bytes = human_bytes(shared.bytes);
        writeln!(
            out,
            "  {bytes:>10}  {:>6} contents  {}",
            shared.contents, shared.image
        )?;
    }
    if let Some(order) = &report.start_order {
        write!(out, "{}", start_order_lines(order))?;
    }
    for path in &report.hot {
        writeln!(out, "  {}", path.escape_debug())?;
    }
    Ok(())
}

/// Returns the lines that `pierhead inspect` prints above the list of files in start order (the
/// order in which container starts open them).
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

fn print_diff(report: &DiffReport, json: bool) -> io::Result<()> {
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
                "{} that this host already has, in {} frames",
                human_bytes(bundle.chunked.bytes),
                bundle.chunked.count
            ),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pierhead_oci::{Algorithm, Digest};

    use super::*;

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
