//! `pierhead pull`: a bundle into the store of this machine, and out of it in the form that is asked for.

mod ask;
mod early;
mod export;
mod fetch;
mod flight;
mod header;
mod lanes;
mod layers;
mod plain;
mod view;
mod whole;
mod work;

use std::path::{Path, PathBuf};
use std::time::Instant;

use pierhead_oci::{Algorithm, Digest, Platform, Target};
use pierhead_worker::store::{self, Kind, Store, Whole};

use super::pulled::{Pulled, haves};
use super::session::Session;
use super::{Error, http::Server, interrupt, names};
use crate::cli::worker::{Form, PullArgs};
use crate::environment::Environment;
use crate::failure::Failure;

pub(super) use ask::{Answered, Waiting, once as ask_once, progress};
pub(super) use header::{Began, read_header};
pub(super) use plain::exists;
use view::{Method, Report, View};

/// One pull.
struct Pull<'a> {
    args: &'a PullArgs,
    server: Server,
    platform: Platform,
    store: Store,
    view: View,
    /// The layers are to be rebuilt.
    layers: bool,
}

/// Runs it.
pub(crate) fn run(args: &PullArgs, environment: &Environment) -> Result<(), Failure> {
    let begun = Instant::now();
    let output = output(args)?;
    let server = super::server(&args.via, &args.login, environment)?;
    let (others, warnings) = others(args)?;
    let store = opened(&args.into, &others)?;
    let pull = Pull {
        args,
        platform: names::platform(args.platform.as_ref()),
        store,
        view: View::new(args.json, output.as_deref() == Some(Path::new("-"))),
        layers: matches!(args.form, Some(Form::OciLayout | Form::DockerArchive)),
        server,
    };
    interrupt::at_interrupt(|| {
        eprintln!("\nstopped: the same command goes on from here");
        std::process::exit(130);
    });
    let mut report = Report {
        image: args.image.to_string(),
        warnings,
        ..Report::default()
    };
    let whole = pull.until_pulled(&mut report)?;
    report.digest = whole.image().digest().to_string();
    report.bytes_received = pull.server.received();
    report.seconds = begun.elapsed().as_secs_f64();
    // While the store's files go to the disk.
    let exported = match (args.form, &output) {
        (Some(form), Some(output)) => pull.export(&whole, form, output, &mut report),
        _ => Ok(()),
    };
    let recorded = whole.recorded().map_err(Error::from);
    if let (Err(_), Err(error)) = (&exported, &recorded) {
        pull.view.say(&error.to_string());
    }
    exported?;
    let image = recorded?;
    // A name that is not kept costs the next pull its best base, no more.
    if let Err(error) = Pulled::note(&pull.store, &args.image, &pull.platform, &image.digest()) {
        report.warnings.push(error.to_string());
    }
    pull.view.report(&report)?;
    Ok(())
}

impl Pull<'_> {
    /// Waits for whoever pulls the same image into the same store; then most of it is there.
    fn until_pulled(&self, report: &mut Report) -> Result<Whole, Failure> {
        let mut told = false;
        loop {
            match self.pull(report) {
                Err(Error::Bundle(pierhead_toc::Error::Busy(fetch))) => {
                    if !std::mem::replace(&mut told, true) {
                        let into = self.args.into.display();
                        self.view.say(&format!(
                            "another pierhead pulls this image into {into}: waiting"
                        ));
                    }
                    Store::wait(&fetch).map_err(Error::from)?;
                }
                pulled => return Ok(pulled?),
            }
        }
    }

    fn pull(&self, report: &mut Report) -> Result<Whole, Error> {
        if let Some(image) = self.here()? {
            report.contents.reused = u64::from(image.table.visible());
            return Ok(image.into());
        }
        let session = Session::new(&self.server);
        if self.args.layers {
            report.reason = Some("--layers".to_owned());
            return self.by_layers(&session, report);
        }
        let pulled = Pulled::read(self.folders());
        let (have, have_layers) = haves(&self.store, &pulled, &self.args.image)?;
        report.have = have.len();
        let ask = pierhead_bundle::api::Ask {
            want: self.args.image.target.to_string(),
            platform: Some(self.platform.to_string()),
            have,
            have_layers,
            layers: self.layers,
            ..pierhead_bundle::api::Ask::default()
        };
        match self.by_bundle(&session, &ask, report)? {
            whole::Came::Image(image) => Ok(*image),
            whole::Came::None(why) => {
                self.view
                    .say(&format!("no bundle, its layers are pulled: {why}"));
                report.reason = Some(why);
                self.by_layers(&session, report)
            }
        }
    }

    fn by_layers(&self, session: &Session, report: &mut Report) -> Result<Whole, Error> {
        report.method = Method::Layers;
        report.connections = 1;
        layers::pull(self, session, report).map(Whole::from)
    }

    /// In the form that was asked for.
    fn export(
        &self,
        whole: &Whole,
        form: Form,
        output: &Path,
        report: &mut Report,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        let what = export::Export {
            store: &self.store,
            image: whole.image(),
            reference: &self.args.image,
            link: self.args.link,
            view: &self.view,
        };
        report.warnings.extend(what.write(form, output)?);
        report.export_seconds = Some(begun.elapsed().as_secs_f64());
        report.output = Some(output.display().to_string());
        Ok(())
    }

    /// What is named by its digest and whole here needs nobody.
    fn here(&self) -> Result<Option<store::Image>, Error> {
        match &self.args.image.target {
            Target::Digest(digest) => Ok(self.store.complete(digest, self.layers)?),
            Target::Tag(_) => Ok(None),
        }
    }

    /// A server that is asked for a digest may not answer with another image: looked at before anything is recorded.
    fn check(&self, session: &Session, manifest: &[u8]) -> Result<(), Error> {
        let Target::Digest(wanted) = &self.args.image.target else {
            return Ok(());
        };
        if Digest::of(wanted.algorithm(), manifest) == *wanted {
            return Ok(());
        }
        // It may be that of an index, which says which manifests are its own.
        let resolved = plain::resolve(session, &self.args.image, &self.platform)?;
        if resolved.digest == Digest::of(Algorithm::Sha256, manifest) {
            return Ok(());
        }
        Err(Error::Said(format!(
            "{} sent another image than {wanted}",
            self.server.url()
        )))
    }

    fn folders(&self) -> impl DoubleEndedIterator<Item = &Path> {
        let others = self.args.have_from.iter().map(PathBuf::as_path);
        std::iter::once(self.args.into.as_path()).chain(others)
    }
}

/// Opens the store; what it is not, in a line with its mend.
fn opened(into: &Path, others: &[PathBuf]) -> Result<Store, Failure> {
    use pierhead_toc::Error as Of;
    Store::open(into, others).map_err(|error| match error {
        Of::Foreign(why) => Failure::Refused(format!("--into: {why}")),
        Of::Io { .. } if into.exists() && !into.is_dir() => {
            Failure::Refused(format!("--into: {} is no folder", into.display()))
        }
        error => Error::from(error).into(),
    })
}

/// The stores to build upon besides, and why some are left out: what is no store is a slip of who typed it.
fn others(args: &PullArgs) -> Result<(Vec<PathBuf>, Vec<String>), Failure> {
    let (mut usable, mut warnings) = (Vec::new(), Vec::new());
    for folder in &args.have_from {
        let shown = folder.display();
        match store::kind(folder) {
            Ok(Kind::Store) => usable.push(folder.clone()),
            Ok(Kind::None | Kind::Foreign) => {
                return Err(Failure::Refused(format!(
                    "--have-from: {shown} is no store of `pierhead pull`"
                )));
            }
            Ok(Kind::Later) => warnings.push(format!(
                "--have-from {shown} was written by a later pierhead: not used"
            )),
            Err(error) => warnings.push(format!("--have-from {shown} is not used: {error}")),
        }
    }
    Ok((usable, warnings))
}

/// Where the form is written.
fn output(args: &PullArgs) -> Result<Option<PathBuf>, Failure> {
    let Some(form) = args.form else {
        return Ok(None);
    };
    let usual = match form {
        Form::Rootfs => "rootfs",
        Form::OciLayout => "oci-layout",
        Form::DockerArchive => "image.tar",
    };
    let output = args.output.clone().unwrap_or_else(|| args.into.join(usual));
    if output == Path::new("-") && form != Form::DockerArchive {
        let why =
            "only a docker-archive can be written to standard output: name a folder with --output";
        return Err(Failure::Refused(why.to_owned()));
    }
    // Said before anything is pulled.
    let is_used = || std::fs::read_dir(&output).is_ok_and(|mut entries| entries.next().is_some());
    if form == Form::Rootfs && is_used() {
        return Err(Failure::Refused(format!(
            "{} is not empty: name an empty folder with --output",
            output.display()
        )));
    }
    Ok(Some(output))
}
