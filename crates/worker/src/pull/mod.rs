//! Pulls an image into the store of this machine: as a delta bundle, or as layers if the server has
//! no bundle.

mod connections;
mod context;
mod export;
mod header;
mod memory;
mod preconnect;
mod pull_bundle;
mod pull_layers;
mod records;
mod report;
mod request;
mod schedule;
#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;
use std::time::Instant;

use crate::store::{CompleteImage, Store};
use pierhead_oci::{Platform, Reference};

use crate::image_names::{ImageNames, base_images};
use crate::{Error, Progress, Server};
use context::PullContext;
pub use export::{ExportForm, ExportOptions, ExportTarget, FileSharing};
pub(crate) use header::{BundleStart, read_header};
use pull_bundle::BundleOutcome;
pub use report::{ContentCounts, PullMethod, PullReport};
pub(crate) use request::{BundleResponse, ReadinessWait, request_bundle};

/// The options of a pull.
pub struct PullOptions {
    /// Reference of the image to pull.
    pub image: Reference,
    /// The platform whose image is chosen from an index of several platforms.
    pub platform: Platform,
    /// Whether an image of another platform is an error. If not, the report has a warning.
    pub requires_platform: bool,
    /// The store into which the image is pulled.
    pub store: Store,
    /// Number of parallel connections. If `None`, the pull chooses the number by the round-trip
    /// time.
    pub connections: Option<NonZeroUsize>,
    /// Whether to pull layers even if the server has a bundle.
    pub layers_only: bool,
    /// How and where to export the image after the pull; `None` for no export.
    pub export: Option<ExportOptions>,
}

/// Pulls an image, verifies every byte, records the image in the store and exports it.
///
/// Received contents stay in the store when a pull fails or its process ends, so that the next pull
/// resumes. If another process pulls the same image into the same store, this call waits for that
/// process.
///
/// # Errors
/// Errors of the connection, the server, the image and the file system: described at [`Error`].
pub fn pull(
    server: &Server,
    options: PullOptions,
    progress: &dyn Progress,
) -> Result<PullReport, Error> {
    let started = Instant::now();
    let export = options.export;
    let with_layers = export.as_ref().is_some_and(|it| it.form.needs_layers());
    let context = PullContext {
        server,
        image: options.image,
        platform: options.platform,
        requires_platform: options.requires_platform,
        store: options.store,
        connections: options.connections,
        layers_only: options.layers_only,
        with_layers,
        progress,
    };
    let mut report = PullReport {
        image: context.image.to_string(),
        ..PullReport::default()
    };
    let complete = pull_when_free(&context, &mut report)?;
    report.digest = complete.image().digest().to_string();
    report.bytes_received = server.received();
    report.seconds = started.elapsed().as_secs_f64();
    // The export runs while another thread syncs the files of the store.
    let exported = match export {
        Some(export) => export_image(&context, &complete, export, &mut report),
        None => Ok(()),
    };
    let recorded = complete.recorded();
    if let (Err(_), Err(error)) = (&exported, &recorded) {
        progress.note(&error.to_string());
    }
    exported?;
    let image = recorded?;
    // An error while the name is recorded is ignored: without the name, the next pull may only miss
    // its best base image.
    let name = ImageNames::add(
        &context.store,
        &context.image,
        &context.platform,
        &image.digest(),
    );
    if let Err(error) = name {
        report.warnings.push(error.to_string());
    }
    Ok(report)
}

/// Pulls the image. If another process pulls the same image into the same store, first waits for
/// that process, and then reuses the contents that it stored.
fn pull_when_free(
    context: &PullContext<'_>,
    report: &mut PullReport,
) -> Result<CompleteImage, Error> {
    let mut is_noted = false;
    loop {
        match pull_once(context, report) {
            Err(Error::Busy(fetch)) => {
                if !std::mem::replace(&mut is_noted, true) {
                    let store = context.store.path().display();
                    context.progress.note(&format!(
                        "another pierhead pulls this image into {store}: waiting"
                    ));
                }
                Store::wait(&fetch)?;
            }
            pulled => return pulled,
        }
    }
}

fn pull_once(context: &PullContext<'_>, report: &mut PullReport) -> Result<CompleteImage, Error> {
    if let Some(image) = context.stored_image()? {
        // The store finds an image by the digest of its manifest, never by that of an index.
        context.check_platform(&image.config, report, || Ok(false))?;
        report.contents.reused = u64::from(image.toc.visible());
        return Ok(image.into());
    }
    let session = context.session();
    if context.layers_only {
        return pull_layers::pull(context, &session, report).map(CompleteImage::from);
    }
    let names = ImageNames::read(context.store.folders());
    let (base_images, with_layers) = base_images(&context.store, &names, &context.image)?;
    report.base_images = base_images.len();
    let query = pierhead_bundle::api::BundleQuery {
        want: context.image.target.to_string(),
        platform: Some(context.platform.to_string()),
        base_images,
        base_images_with_layers: with_layers,
        layers: context.with_layers,
        ..pierhead_bundle::api::BundleQuery::default()
    };
    match pull_bundle::pull(context, &session, &query, report)? {
        BundleOutcome::Image(image) => Ok(*image),
        BundleOutcome::Unavailable(reason) => {
            let line = format!("pulling layers, because there is no bundle: {reason}");
            context.progress.note(&line);
            report.reason = Some(reason);
            pull_layers::pull(context, &session, report).map(CompleteImage::from)
        }
    }
}

fn export_image(
    context: &PullContext<'_>,
    complete: &CompleteImage,
    export: ExportOptions,
    report: &mut PullReport,
) -> Result<(), Error> {
    let started = Instant::now();
    let source = export::ExportSource {
        store: &context.store,
        image: complete.image(),
        reference: &context.image,
        progress: context.progress,
    };
    report.warnings.extend(source.write(export)?);
    report.export_seconds = Some(started.elapsed().as_secs_f64());
    Ok(())
}
