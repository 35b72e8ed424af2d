//! Pulls an image as a bundle: from the request for the bundle until the image is complete in the
//! store.

use std::io::Read as _;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::store::{Apply, ApplyOutcome, CompleteImage, NewFetch};
use pierhead_bundle::api::{BundleQuery, Part, Stage};
use pierhead_bundle::format::{Header, UsableContents};
use pierhead_oci::{Algorithm, Digest, Target};
use pierhead_toc::FileDigest;

use super::connections::{self, ExtraConnections};
use super::context::PullContext;
use super::header::{self, BundleStart};
use super::preconnect;
use super::records::{FetchOutcome, RecordFetch, RecordStream};
use super::report::{ContentCounts, PullReport};
use super::request::{BundleResponse, ReadinessWait, request_bundle};
use super::schedule::FrameSchedule;
use crate::http::{Request, RetryBackoff, Session};
use crate::{Error, Unit, registry, request_path};

/// Maximum number of bundles that one pull requests. A pull requests another bundle when the server
/// has replaced the bundle, or when the bundle cannot be applied.
const MAX_CHANGES: usize = 3;
/// Maximum number of rounds in which a pull requests single contents that are missing after the
/// last frame of the bundle.
const MAX_REPAIR_ROUNDS: usize = 3;
/// Interval at which a pull without a progress bar notes that the server still prepares the bundle.
const NOTE_INTERVAL: Duration = Duration::from_secs(60);
const READ_SIZE: usize = 64 << 10;

/// How a pull as a bundle ended.
pub(super) enum BundleOutcome {
    Image(Box<CompleteImage>),
    /// The server has no bundle that can be applied, for this reason.
    Unavailable(String),
}

/// Pulls the bundle that `query` describes. Resumes an interrupted pull of the same image first.
pub(super) fn pull(
    context: &PullContext<'_>,
    session: &Session,
    query: &BundleQuery,
    report: &mut PullReport,
) -> Result<BundleOutcome, Error> {
    BundlePull { context, session }.run(query, report)
}

/// The state of the pull of one image as a bundle.
struct BundlePull<'a> {
    context: &'a PullContext<'a>,
    session: &'a Session,
}

impl BundlePull<'_> {
    fn run(&self, query: &BundleQuery, report: &mut PullReport) -> Result<BundleOutcome, Error> {
        let context = self.context;
        let name = format!(
            "{} {} {}",
            context.image, context.platform, context.with_layers
        );
        let wanted = context.connections.map(usize::from);
        let (total, preconnected) = preconnect::connect(self.session, context.server, wanted)?;
        report.connections = total;
        if let Some(image) = self.resume(&name, total, report)? {
            return Ok(BundleOutcome::Image(image));
        }
        let mut extra = ExtraConnections::open(
            context.server,
            &context.image,
            Some(query),
            total,
            preconnected,
        );
        let mut query = query.clone();
        for _ in 0..MAX_CHANGES {
            let start = match self.read_start(&query, &extra)? {
                Ok(start) => start,
                Err(reason) => return Ok(BundleOutcome::Unavailable(reason)),
            };
            context.verify_manifest(self.session, &start.header.manifest)?;
            self.check_platform(&start.header, report)?;
            // The header of the bundle lists those base images of the request that the server has
            // considered.
            let base_images = start.header.base_images.iter();
            let used = base_images
                .filter(|base_image| base_image.usable != UsableContents::None)
                .count();
            report.base_images_unused = query.base_images.len().saturating_sub(used);
            let records = start.header.records;
            let fetch_start = context.store.begin(NewFetch {
                name: &name,
                query: &query,
                etag: &start.etag,
                prelude: &start.prelude,
                body: &start.body,
                header: *start.header,
                is_toc_verified: false,
            });
            let apply = match fetch_start {
                Ok(apply) => apply,
                // The bundle needs layers that another process removed from the store after the
                // request.
                Err(Error::Malformed { .. }) if self.drop_missing_layers(&mut query)? => {
                    extra = ExtraConnections::default();
                    continue;
                }
                Err(error) => match fallback(&mut query, error)? {
                    Fallback::RequestAgain => {
                        extra = ExtraConnections::default();
                        continue;
                    }
                    Fallback::Layers(reason) => return Ok(BundleOutcome::Unavailable(reason)),
                },
            };
            let first_share_end = start.prelude.until;
            let first = Some(RecordStream {
                body: start.from,
                decoder: start.decoder,
                rest: start.rest,
                end: first_share_end,
            });
            let extra = std::mem::take(&mut extra);
            let fetched = self.fetch(&apply, first_share_end, records, first, extra)?;
            if fetched == FetchOutcome::Complete {
                let image = self.finish(self.session, &apply, report, total)?;
                return Ok(BundleOutcome::Image(image));
            }
        }
        let url = context.server.url();
        Err(Error::protocol(
            url,
            "it has replaced the bundle several times during this pull; try again",
        ))
    }

    /// Requests the bundle and reads its header, in pieces if the extra connections request pieces
    /// of the header. The inner error is the reason why the server has no bundle.
    fn read_start(
        &self,
        query: &BundleQuery,
        extra: &ExtraConnections,
    ) -> Result<Result<BundleStart, String>, Error> {
        let mut first = BundleQuery {
            share: connections::share(0, extra.len() + 1),
            pieces: extra.pieces().is_some(),
            ..query.clone()
        };
        // An error of this connect is ignored, since the request below meets the same error.
        let timeout = header::piece_timeout(self.session.connect().unwrap_or_default());
        loop {
            let (etag, body) = match self.request(self.session, &mut first)? {
                BundleResponse::Bundle { etag, body } => (etag, body),
                BundleResponse::Unavailable(reason) => return Ok(Err(reason)),
            };
            let share = first.share.filter(|_| first.pieces);
            let share = share.zip(extra.pieces());
            let start = BundleStart::read(self.context.server, etag, body, share, timeout)?;
            if let Some(start) = start {
                return Ok(Ok(start));
            }
            // A piece of the header is missing, so request the whole header.
            first.pieces = false;
        }
    }

    /// Removes from the request each base image whose layers are no longer in the store. Returns
    /// whether there was such a base image.
    fn drop_missing_layers(&self, query: &mut BundleQuery) -> Result<bool, Error> {
        let images = self.context.store.images()?;
        let before = query.base_images_with_layers.len();
        query.base_images_with_layers.retain(|manifest| {
            let mut images = images.iter();
            images.any(|image| image.layers && image.manifest == *manifest)
        });
        Ok(query.base_images_with_layers.len() < before)
    }

    /// Resumes a pull that another process began and did not finish, if the server still has the
    /// same bundle.
    fn resume(
        &self,
        name: &str,
        total: usize,
        report: &mut PullReport,
    ) -> Result<Option<Box<CompleteImage>>, Error> {
        let context = self.context;
        let Some(apply) = context.store.resume(name)? else {
            return Ok(None);
        };
        let frames = |range: &Range<u32>| u64::from(range.end - range.start);
        self.check_platform(apply.header(), report)?;
        let missing: u64 = apply.missing().iter().map(frames).sum();
        let all = apply.weights().count();
        let records = apply.header().records;
        let extra = ExtraConnections::open(context.server, &context.image, None, total, Vec::new());
        if self.fetch(&apply, u32::MAX, records, None, extra)? == FetchOutcome::Changed {
            return Ok(None);
        }
        report.frames_resumed = u64::try_from(all).unwrap_or(0).saturating_sub(missing);
        let session = context.session();
        context.verify_manifest(&session, &apply.header().manifest)?;
        if missing == 0 && !self.is_current(&session, &apply)? {
            return Ok(None);
        }
        self.finish(&session, &apply, report, total).map(Some)
    }

    /// Checks the platform of the image of a bundle, as [`PullContext::check_platform`] does. A
    /// bundle does not tell whether the reference names an index, so the check may ask the server.
    fn check_platform(&self, header: &Header, report: &mut PullReport) -> Result<(), Error> {
        let context = self.context;
        context.check_platform(&header.config, report, || {
            let image = registry::resolve(self.session, &context.image, &context.platform)?;
            Ok(image.is_of_index)
        })
    }

    /// Whether the tag still names the image of this bundle. A resumed pull without missing frames
    /// has not asked the server yet.
    fn is_current(&self, session: &Session, apply: &Apply) -> Result<bool, Error> {
        if matches!(self.context.image.target, Target::Digest(_)) {
            return Ok(true);
        }
        let mut query = BundleQuery {
            part: Some(Part {
                etag: apply.etag().to_owned(),
                first: u32::MAX,
                end: Some(u32::MAX),
            }),
            ..apply.query().clone()
        };
        match self.request(session, &mut query)? {
            BundleResponse::Bundle { etag, .. } => Ok(etag == apply.etag()),
            BundleResponse::Unavailable(_) => Ok(false),
        }
    }

    /// Repeats the request for a bundle until the server sends the bundle, or reports that it has
    /// no bundle.
    fn request(&self, session: &Session, query: &mut BundleQuery) -> Result<BundleResponse, Error> {
        let context = self.context;
        let image = &context.image;
        let mut wait = ReadinessWait::new();
        let mut last_note: Option<Instant> = None;
        loop {
            match request_bundle(session, image, query) {
                Ok(response) => return Ok(response),
                Err(error) if let Some(reason) = wait.timed_out(&error) => {
                    return Ok(BundleResponse::Unavailable(reason));
                }
                Err(error) => wait.wait(error, &mut |stage, progress| {
                    let is_due = last_note.is_none_or(|at| at.elapsed() >= NOTE_INTERVAL);
                    if !context.progress.is_drawn() && is_due {
                        last_note = Some(Instant::now());
                        let line = format!("{image} {stage} by the server");
                        context.progress.note(&line);
                    }
                    let unit = match progress.stage {
                        Stage::Index => Unit::Layers,
                        _ => Unit::Bytes,
                    };
                    let subject = format!("{image} {stage}");
                    context.progress.begin(&subject, unit, progress.total);
                    context.progress.set(progress.done);
                    // The server has also refused the requests of the extra connections, so they
                    // receive no pieces of the header.
                    query.pieces = false;
                })?,
            }
        }
    }

    fn fetch(
        &self,
        apply: &Apply,
        first_share_end: u32,
        records: u64,
        first: Option<RecordStream>,
        extra: ExtraConnections,
    ) -> Result<FetchOutcome, Error> {
        let context = self.context;
        let subject = context.image.to_string();
        context.progress.begin(&subject, Unit::Bytes, records);
        let schedule = FrameSchedule::new(
            apply.weights(),
            apply.missing(),
            extra.len() + 1,
            first_share_end,
        );
        RecordFetch::new(context, apply, schedule).run(first, extra)
    }

    /// Requests one by one the contents that no frame contained, or that another program altered in
    /// the store.
    fn finish(
        &self,
        session: &Session,
        apply: &Apply,
        report: &mut PullReport,
        total: usize,
    ) -> Result<Box<CompleteImage>, Error> {
        for _ in 0..MAX_REPAIR_ROUNDS {
            match apply.finish()? {
                ApplyOutcome::Complete(image) => {
                    report.contents = ContentCounts::new(&apply.counts());
                    return Ok(image);
                }
                ApplyOutcome::Missing(contents) => {
                    self.fetch_contents(session, apply, &contents, total)?;
                }
            }
        }
        Err(Error::Store(
            "another program removes files of the store during the pull: stop it, and pull again"
                .to_owned(),
        ))
    }

    /// Fetches contents over at most `total` connections. When a connection has fetched a content,
    /// it takes the next missing content.
    fn fetch_contents(
        &self,
        session: &Session,
        apply: &Apply,
        contents: &[(FileDigest, u64)],
        total: usize,
    ) -> Result<(), Error> {
        let manifest = Digest::of(Algorithm::Sha256, &apply.header().manifest);
        let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let fetch_some = |session: &Session| -> Result<(), Error> {
            while !has_failed.load(Ordering::Relaxed)
                && let Some((content, _)) = contents.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let fetched = self.fetch_content(session, apply, content, manifest);
                has_failed.fetch_or(fetched.is_err(), Ordering::Relaxed);
                fetched?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let others = 1..total.min(contents.len());
            let others: Vec<_> = others
                .map(|_| scope.spawn(|| fetch_some(&self.context.session())))
                .collect();
            let mut result = fetch_some(session);
            for other in others {
                let fetched = other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(fetched);
            }
            result
        })
    }

    /// Fetches one file content, with retries.
    fn fetch_content(
        &self,
        session: &Session,
        apply: &Apply,
        content: &FileDigest,
        manifest: Digest,
    ) -> Result<(), Error> {
        let path = request_path::file(&self.context.image, Digest::from(*content), manifest);
        let mut backoff = RetryBackoff::new();
        loop {
            match self.try_content(session, apply, content, &path) {
                Err(error) => backoff.wait(error)?,
                fetched => return fetched,
            }
        }
    }

    fn try_content(
        &self,
        session: &Session,
        apply: &Apply,
        content: &FileDigest,
        path: &str,
    ) -> Result<(), Error> {
        let server = self.context.server;
        let mut response = session.send(&Request::get(path, &[]))?;
        if response.status != http::StatusCode::OK {
            return Err(response.into_error(server, &format!("the file {content}")));
        }
        let mut receive = apply.receive(content)?;
        let mut buffer = vec![0; READ_SIZE];
        loop {
            let doing = format!("the transfer of {content} was interrupted");
            let read = response.body.read(&mut buffer);
            match read.map_err(Error::connection(doing))? {
                0 => break,
                read => receive.write(&buffer[..read])?,
            }
        }
        self.context.progress.set(server.received());
        receive.commit()
    }
}

/// What a pull does when a bundle cannot be applied.
enum Fallback {
    /// Send the request for the bundle again, after a change to the request.
    RequestAgain,
    /// Pull the layers of the image, for this reason.
    Layers(String),
}

/// Chooses the fallback of a bundle that cannot be applied.
///
/// Since a base image may be damaged, the first fallback is a bundle without base images. The
/// second fallback is a pull of layers, whose digests are in the manifest.
fn fallback(query: &mut BundleQuery, error: Error) -> Result<Fallback, Error> {
    match error {
        Error::Malformed { .. } | Error::Digest { .. } | Error::Missing(_)
            if !query.base_images.is_empty() =>
        {
            query.base_images.clear();
            query.base_images_with_layers.clear();
            Ok(Fallback::RequestAgain)
        }
        Error::Malformed { .. } | Error::Digest { .. } => Ok(Fallback::Layers(error.to_string())),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fallbacks_are_a_bundle_without_base_images_and_then_layers() {
        let malformed = || Error::Malformed {
            what: "bundle",
            why: "x".to_owned(),
        };
        let base_image = Digest::of(Algorithm::Sha256, b"base image");
        let mut query = BundleQuery {
            base_images: vec![base_image],
            base_images_with_layers: vec![base_image],
            ..BundleQuery::default()
        };
        let first = fallback(&mut query, malformed());
        assert!(matches!(first, Ok(Fallback::RequestAgain)));
        assert_eq!(query, BundleQuery::default());
        let second = fallback(&mut query, malformed());
        assert!(matches!(second, Ok(Fallback::Layers(reason)) if reason.contains('x')));
        query.base_images.push(base_image);
        let missing = Error::Missing("content".to_owned());
        assert!(matches!(
            fallback(&mut query, missing),
            Ok(Fallback::RequestAgain)
        ));
        let full = Error::File {
            doing: "write".to_owned(),
            source: std::io::ErrorKind::StorageFull.into(),
        };
        assert!(fallback(&mut query, full).is_err());
    }
}
