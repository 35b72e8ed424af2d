//! Runs `pierhead pull`: turns flags into options of the crate `pierhead-worker`, and prints the
//! report that this crate returns.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pierhead_oci::units::human_bytes;
use pierhead_worker::Error;
use pierhead_worker::pull::{
    ExportForm, ExportOptions, ExportTarget, FileSharing, PullMethod, PullOptions, PullReport,
};
use pierhead_worker::store::{self, FolderKind, Store};

use super::args::{Form, Link, PullArgs};
use super::interrupt;
use super::progress::TerminalProgress;
use super::server::{platform, server};

use crate::cli::exit_code::CommandError;
use crate::cli::verbosity;
use crate::config::environment::Environment;

/// Runs the command `pierhead pull`.
pub(crate) fn run(args: &PullArgs, environment: &Environment) -> Result<(), CommandError> {
    let output = output(args)?;
    let server = server(&args.via, &args.login, environment)?;
    let (others, warnings) = base_stores(args)?;
    let store = open_store(&args.into, &others)?;
    let is_piped = output.as_deref() == Some(Path::new("-"));
    let progress = TerminalProgress::new(args.json);
    interrupt::at_interrupt(|| {
        eprintln!("\nstopped: run the same command again to resume");
        std::process::exit(130);
    });
    let export = args.form.zip(output.clone()).map(|(form, output)| {
        let form = match (form, args.link) {
            (Form::Rootfs, Link::Reflink) => ExportForm::Rootfs(FileSharing::Reflink),
            (Form::Rootfs, Link::Hard) => ExportForm::Rootfs(FileSharing::HardLink),
            (Form::OciLayout, _) => ExportForm::OciLayout,
            (Form::DockerArchive, _) => ExportForm::DockerArchive,
        };
        let target = match is_piped {
            true => ExportTarget::Stream(Box::new(io::stdout())),
            false => ExportTarget::Path(output),
        };
        ExportOptions { form, target }
    });
    let options = PullOptions {
        image: args.image.clone(),
        platform: platform(args.platform.as_ref()),
        requires_platform: args.platform.is_some(),
        store,
        connections: args.connections,
        layers_only: args.layers,
        export,
    };
    let mut report = pierhead_worker::pull::pull(&server, options, &progress)?;
    report.warnings.splice(0..0, warnings);
    report.output = output.map(|output| output.display().to_string());
    if args.layers && report.method == PullMethod::Layers {
        report.reason = Some("--layers".to_owned());
    }
    progress.finish();
    print(&report, args.json, is_piped)?;
    Ok(())
}

/// Opens the image store in the folder of `--into`. A folder that is not a store is a usage error.
fn open_store(into: &Path, others: &[PathBuf]) -> Result<Store, CommandError> {
    Store::open(into, others).map_err(|error| match error {
        Error::Foreign(reason) => CommandError::Usage(format!("--into: {reason}")),
        Error::File { .. } if into.exists() && !into.is_dir() => {
            CommandError::Usage(format!("--into: {} is no folder", into.display()))
        }
        error => error.into(),
    })
}

/// Returns the usable stores of `--base-store`, and a warning for each store that cannot be used. A
/// folder that is not a store is a usage error.
fn base_stores(args: &PullArgs) -> Result<(Vec<PathBuf>, Vec<String>), CommandError> {
    let (mut usable, mut warnings) = (Vec::new(), Vec::new());
    for folder in &args.base_stores {
        let shown = folder.display();
        match store::kind(folder) {
            Ok(FolderKind::Store) => usable.push(folder.clone()),
            Ok(FolderKind::None | FolderKind::Foreign) => {
                return Err(CommandError::Usage(format!(
                    "--base-store: {shown} is not a store of `pierhead pull`"
                )));
            }
            Ok(FolderKind::Later) => warnings.push(format!(
                "--base-store {shown} has a newer format than this version can read: not used"
            )),
            Err(error) => warnings.push(format!("--base-store {shown} is not used: {error}")),
        }
    }
    Ok((usable, warnings))
}

/// Returns the path to which the image is written (`--as`, `--output`). Checks the path to
/// the image before the pull, so that a wrong `--output` fails early.
fn output(args: &PullArgs) -> Result<Option<PathBuf>, CommandError> {
    let Some(form) = args.form else {
        return Ok(None);
    };
    let default_name = match form {
        Form::Rootfs => "rootfs",
        Form::OciLayout => "oci-layout",
        Form::DockerArchive => "image.tar",
    };
    let default = || args.into.join(default_name);
    let output = args.output.clone().unwrap_or_else(default);
    if output == Path::new("-") && form != Form::DockerArchive {
        let reason =
            "only a docker-archive can be written to standard output: name a folder with --output";
        return Err(CommandError::Usage(reason.to_owned()));
    }
    let is_not_empty =
        || std::fs::read_dir(&output).is_ok_and(|mut entries| entries.next().is_some());
    if form == Form::Rootfs && is_not_empty() {
        return Err(CommandError::Usage(format!(
            "{} is not empty: name an empty folder with --output",
            output.display()
        )));
    }
    Ok(Some(output))
}

/// Prints the report: on standard error if the image archive goes to standard output, else on
/// standard output. With `--quiet` and without `--json`, prints only warnings.
fn print(report: &PullReport, json: bool, is_piped: bool) -> io::Result<()> {
    if verbosity::is_quiet() && !json {
        for warning in &report.warnings {
            eprintln!("warning: {warning}");
        }
        return Ok(());
    }
    let text = match json {
        true => serde_json::to_string(report)? + "\n",
        false => lines(report),
    };
    match is_piped {
        true => io::stderr().lock().write_all(text.as_bytes()),
        false => io::stdout().lock().write_all(text.as_bytes()),
    }
}

fn lines(report: &PullReport) -> String {
    let mut text = String::new();
    let contents = &report.contents;
    let _ = writeln!(text, "pulled    {}", report.image);
    let _ = writeln!(text, "digest    {}", report.digest);
    let _ = writeln!(
        text,
        "received  {} in {:.1?}{}",
        human_bytes(report.bytes_received),
        Duration::from_secs_f64(report.seconds.max(0.0)),
        match report.method {
            PullMethod::Bundle => "",
            PullMethod::Layers => ", as layers",
        }
    );
    let _ = writeln!(
        text,
        "contents  {} already here, {} patched, {} in part, {} complete",
        contents.reused, contents.patched, contents.chunked, contents.full
    );
    if let Some(output) = &report.output {
        let output = match output.as_str() {
            "-" => "standard output",
            path => path,
        };
        let _ = writeln!(text, "written   {output}");
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "warning   {warning}");
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use pierhead_worker::pull::ContentCounts;

    use super::*;
    use crate::cli::exit_code::CommandError;
    use crate::cli::{Cli, Command};

    /// Parses the flags of `pierhead pull`.
    fn args(into: &Path, more: &[&str]) -> PullArgs {
        let into = into.to_str().expect("UTF-8");
        let flags = [
            "pierhead",
            "pull",
            "a.io/b:1",
            "--via",
            "http://a:1",
            "--into",
            into,
        ];
        match Cli::try_parse_from(flags.iter().chain(more)) {
            Ok(Cli {
                command: Command::Pull(args),
                ..
            }) => *args,
            Ok(_) => panic!("another command"),
            Err(error) => panic!("{error}"),
        }
    }

    fn usage<T>(result: Result<T, CommandError>) -> String {
        match result {
            Err(CommandError::Usage(message)) => message,
            Err(error) => panic!("{error:?}"),
            Ok(_) => panic!("no error"),
        }
    }

    #[test]
    fn the_target_of_an_export_is_checked_before_the_pull() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = folder.path().join("store");
        let full = folder.path().join("full");
        std::fs::create_dir(&full).expect("made");
        std::fs::write(full.join("file"), "").expect("written");
        let full = full.to_str().expect("UTF-8");
        for (flags, expected) in [
            (&[][..], None),
            (&["--as", "rootfs"], Some(store.join("rootfs"))),
            (&["--as", "oci-layout"], Some(store.join("oci-layout"))),
            (&["--as", "docker-archive"], Some(store.join("image.tar"))),
            (
                &["--as", "rootfs", "--output", "x"],
                Some(PathBuf::from("x")),
            ),
            (
                &["--as", "docker-archive", "--output", "-"],
                Some(PathBuf::from("-")),
            ),
            // Only a root file system needs an empty folder.
            (
                &["--as", "oci-layout", "--output", full],
                Some(PathBuf::from(full)),
            ),
        ] {
            let found = output(&args(&store, flags)).unwrap_or_else(|error| panic!("{error:?}"));
            assert_eq!(found, expected, "{flags:?}");
        }
        for (flags, part) in [
            (["--as", "rootfs", "--output", "-"], "only a docker-archive"),
            (
                ["--as", "oci-layout", "--output", "-"],
                "name a folder with --output",
            ),
            (["--as", "rootfs", "--output", full], "is not empty"),
        ] {
            let message = usage(output(&args(&store, &flags)));
            assert!(message.contains(part), "{flags:?}: {message}");
        }
    }

    #[test]
    fn a_folder_that_is_no_store_is_a_usage_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let foreign = folder.path().join("foreign");
        std::fs::create_dir(&foreign).expect("made");
        std::fs::write(foreign.join("thesis.txt"), "text").expect("written");
        let message = usage(open_store(&foreign, &[]));
        assert!(message.starts_with("--into: "), "{message}");
        let file = foreign.join("thesis.txt");
        let message = usage(open_store(&file, &[]));
        assert!(message.contains("thesis.txt is no folder"), "{message}");
        let store = folder.path().join("store");
        drop(open_store(&store, &[]).unwrap_or_else(|error| panic!("{error:?}")));

        let shown = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let bases = |path: &str| base_stores(&args(&store, &["--base-store", path]));
        let (usable, warnings) = bases(&shown(&store)).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!((usable, warnings), (vec![store.clone()], Vec::new()));
        for path in [shown(&foreign), shown(&folder.path().join("missing"))] {
            let message = usage(bases(&path));
            let expected = format!("--base-store: {path} is not a store of `pierhead pull`");
            assert_eq!(message, expected);
        }
        // A store of a later version is not used, and the pull continues.
        std::fs::write(store.join("version"), "store 999\n").expect("written");
        let (usable, warnings) = bases(&shown(&store)).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(usable, Vec::<PathBuf>::new());
        assert!(warnings[0].contains("has a newer format"), "{warnings:?}");
    }

    #[test]
    fn the_text_has_the_method_the_target_and_each_warning() {
        let report = PullReport {
            image: "docker.io/library/redis:7".to_owned(),
            digest: "sha256:00".to_owned(),
            method: PullMethod::Layers,
            bytes_received: 3 << 20,
            seconds: 2.5,
            contents: ContentCounts {
                reused: 1,
                patched: 2,
                chunked: 3,
                full: 4,
            },
            output: Some("store/rootfs".to_owned()),
            warnings: vec!["one".to_owned(), "two".to_owned()],
            ..PullReport::default()
        };
        let expected = "\
pulled    docker.io/library/redis:7
digest    sha256:00
received  3.0 MiB in 2.5s, as layers
contents  1 already here, 2 patched, 3 in part, 4 complete
written   store/rootfs
warning   one
warning   two
";
        assert_eq!(lines(&report), expected);
    }

    #[test]
    fn the_text_has_bytes_and_time() {
        let report = PullReport {
            image: "docker.io/library/redis:7".to_owned(),
            bytes_received: 7,
            ..PullReport::default()
        };
        let text = lines(&report);
        assert!(text.contains("received  7 B in 0.0"), "{text}");
    }
}
