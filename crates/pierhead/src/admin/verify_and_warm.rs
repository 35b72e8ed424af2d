//! Handlers of the long-running requests `verify` (compares cached blobs with their digests) and
//! `warm` (pulls images in advance). Each response has a line of JSON per step. The work stops when
//! the client closes the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use pierhead_host::BackgroundTask;
use pierhead_oci::{Digest, Platform, Reference};

use super::Admin;
use super::api::{Event, Warm};
use super::body::{AdminResponse, LineSender, error_response};

/// Minimum interval between two progress lines of one image or one verification.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Number of blobs that a verification lists at a time.
const PAGE_BLOBS: usize = 256;

impl Admin {
    pub(super) fn verify(self: Arc<Self>) -> Result<AdminResponse, Box<AdminResponse>> {
        let Ok(permit) = Arc::clone(&self.verifying).try_acquire_owned() else {
            return Err(Box::new(error_response(
                StatusCode::CONFLICT,
                "a verification is already running: wait until it ends",
            )));
        };
        let (lines, response) = LineSender::response();
        let panics = self.cache.panics().clone();
        panics.spawn(BackgroundTask::CacheVerify, async move {
            self.verify_all(&lines).await;
            drop(permit);
        });
        Ok(response)
    }

    async fn verify_all(&self, lines: &LineSender) {
        let stat = self.cache.stat();
        let (mut good, mut bad, mut bytes_done, mut after) = (0, 0, 0_u64, None::<Digest>);
        loop {
            let page = self.cache.list(after, PAGE_BLOBS);
            let Some(last) = page.last() else { break };
            after = Some(last.digest);
            for entry in page {
                let subject = entry.digest.to_string();
                let message = match self.cache.verify(&entry.digest).await {
                    Ok(true) => None,
                    Ok(false) => Some(
                        "corrupt on disk: removed; pierhead fetches it again at the next request"
                            .to_owned(),
                    ),
                    Err(error) => Some(error.to_string()),
                };
                bytes_done = bytes_done.saturating_add(entry.size);
                if let Some(message) = message {
                    bad += 1;
                    let item = Event::Item {
                        subject: subject.clone(),
                        ok: false,
                        message: Some(message),
                    };
                    if !lines.send(&item).await {
                        return;
                    }
                } else {
                    good += 1;
                }
                let blobs = stat.blobs.max(good + bad);
                let progress = Event::Progress {
                    subject,
                    done: good + bad,
                    blobs,
                    bytes_done,
                    bytes: stat.used.max(bytes_done),
                };
                if !lines.send(&progress).await {
                    return;
                }
            }
        }
        lines.send(&Event::Done { good, bad }).await;
    }

    pub(super) fn warm(self: Arc<Self>, warm: Warm) -> Result<AdminResponse, Box<AdminResponse>> {
        let bad = |message: String| Box::new(error_response(StatusCode::BAD_REQUEST, message));
        let mut images = Vec::new();
        for text in &warm.images {
            images.push(
                text.parse::<Reference>()
                    .map_err(|error| bad(format!("{text:?}: {error}")))?,
            );
        }
        let mut platforms = Vec::new();
        for text in &warm.platforms {
            platforms.push(
                text.parse::<Platform>()
                    .map_err(|error| bad(format!("{text:?}: {error}")))?,
            );
        }
        let (lines, response) = LineSender::response();
        let panics = self.cache.panics().clone();
        panics.spawn(BackgroundTask::CacheWarm, async move {
            tokio::select! {
                () = self.warm_all(&images, &platforms, warm.pin, &lines) => {}
                () = lines.client_left() => {}
            }
        });
        Ok(response)
    }

    async fn warm_all(
        &self,
        images: &[Reference],
        platforms: &[Platform],
        pin: bool,
        lines: &LineSender,
    ) {
        let (mut good, mut bad) = (0, 0);
        for image in images {
            let subject = image.to_string();
            let result = self.warm_one(image, platforms, pin, &subject, lines).await;
            let message = result.err();
            let ok = message.is_none();
            if ok {
                good += 1
            } else {
                bad += 1
            }
            if !lines
                .send(&Event::Item {
                    subject,
                    ok,
                    message,
                })
                .await
            {
                return;
            }
        }
        lines.send(&Event::Done { good, bad }).await;
    }

    async fn warm_one(
        &self,
        image: &Reference,
        platforms: &[Platform],
        pin: bool,
        subject: &str,
        lines: &LineSender,
    ) -> Result<(), String> {
        let event = |progress: pierhead_proxy::Progress| Event::Progress {
            subject: subject.to_owned(),
            done: progress.done,
            blobs: progress.blobs,
            bytes_done: progress.bytes_done,
            bytes: progress.bytes,
        };
        let mut last = None::<Instant>;
        let report = |progress| {
            if last.is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL) {
                last = Some(Instant::now());
                lines.try_send(&event(progress));
            }
        };
        let end = self.proxy.warm(image, platforms, report).await?;
        lines.send(&event(end)).await;
        if pin {
            let digests = self.proxy.cached(image).await?.digests;
            let blobs = digests.len();
            self.cache
                .pin(subject, digests)
                .await
                .map_err(|error| error.to_string())?;
            tracing::info!(image = %subject, blobs, "image pinned");
        }
        Ok(())
    }
}
