//! One bundle from its request to the image being whole in the store.

use std::io::{self, IsTerminal as _, Read as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pierhead_bundle::api::{Ask, Part, Stage};
use pierhead_bundle::format::Known;
use pierhead_oci::{Algorithm, Digest, Target};
use pierhead_toc::FileDigest;
use pierhead_worker::store::{Apply, Begin, Outcome, Whole};

use super::super::http::Request;
use super::super::session::{Patience, Session};
use super::super::{Error, names};
use super::Pull;
use super::ask::{self, Answered, Waiting};
use super::early;
use super::fetch::{Fetch, Fetched, Reading};
use super::header::{self, Began};
use super::lanes::{self, Lanes};
use super::view::{Counts, Report};
use super::work::Work;
use crate::progress::Unit;

/// How often a server may change its mind about a bundle.
const CHANGES: usize = 3;
/// How often contents that are missing at the end are asked for.
const ROUNDS: usize = 3;
/// Between two lines that say that the server is still at it.
const SAID: Duration = Duration::from_secs(60);
const PIECE: usize = 64 << 10;

/// What came of it.
pub(super) enum Came {
    Image(Box<Whole>),
    /// The server has no bundle of it: why.
    None(String),
}

impl Pull<'_> {
    pub(super) fn by_bundle(
        &self,
        session: &Session,
        ask: &Ask,
        report: &mut Report,
    ) -> Result<Came, Error> {
        let name = format!("{} {} {}", self.args.image, self.platform, self.layers);
        let told = self.args.connections.map(usize::from);
        let (among, early) = early::connect(session, &self.server, told)?;
        report.connections = among;
        if let Some(image) = self.resume(&name, among, report)? {
            return Ok(Came::Image(image));
        }
        let mut lanes = Lanes::open(&self.server, &self.args.image, Some(ask), among, early);
        let mut ask = ask.clone();
        for _ in 0..CHANGES {
            let began = match self.begun(session, &ask, &lanes)? {
                Ok(began) => began,
                Err(why) => return Ok(Came::None(why)),
            };
            self.check(session, &began.header.manifest)?;
            // A server names those that it counts on.
            let haves = began.header.haves.iter();
            let known = haves.filter(|have| have.known != Known::Unknown).count();
            report.have_unknown = ask.have.len().saturating_sub(known);
            let total = began.header.records;
            let begun = self.store.begin(Begin {
                name: &name,
                ask: &ask,
                etag: &began.etag,
                prelude: &began.prelude,
                body: &began.body,
                header: *began.header,
                proven: false,
            });
            let apply = match begun {
                Ok(apply) => apply,
                // A mark that fell meanwhile, and no fault of the bundle's.
                Err(pierhead_toc::Error::Malformed { .. }) if self.fallen(&mut ask)? => {
                    lanes = Lanes::default();
                    continue;
                }
                Err(error) => match next(&mut ask, error)? {
                    Next::Ask => {
                        lanes = Lanes::default();
                        continue;
                    }
                    Next::Layers(why) => return Ok(Came::None(why)),
                },
            };
            let shared = began.prelude.until;
            let first = Some(Reading {
                body: began.from,
                decoder: began.decoder,
                rest: began.rest,
                bound: shared,
            });
            let lanes = std::mem::take(&mut lanes);
            if self.fetch(&apply, shared, total, first, lanes)? == Fetched::All {
                let image = self.finish(session, &apply, report, among)?;
                return Ok(Came::Image(image));
            }
        }
        let url = self.server.url();
        Err(Error::Said(format!(
            "{url} changes the bundle again and again"
        )))
    }

    /// Asks for the header, in pieces if the others were asked for theirs; or why there is none.
    fn begun(
        &self,
        session: &Session,
        ask: &Ask,
        lanes: &Lanes,
    ) -> Result<Result<Began, String>, Error> {
        let mut first = Ask {
            share: lanes::share(0, lanes.len() + 1),
            pieces: lanes.pieces().is_some(),
            ..ask.clone()
        };
        // Known since it was connected; a connection that is lost meanwhile is told of by asking.
        let patience = header::patience(session.connect().unwrap_or_default());
        loop {
            let (etag, body) = match self.asked(session, &mut first)? {
                Answered::Bundle { etag, body } => (etag, body),
                Answered::None(why) => return Ok(Err(why)),
            };
            let asked = first.share.filter(|_| first.pieces);
            let share = asked.zip(lanes.pieces());
            if let Some(began) = Began::read(&self.server, etag, body, share, patience)? {
                return Ok(Ok(began));
            }
            // A piece of it did not come: all of it, then.
            first.pieces = false;
        }
    }

    /// Takes back what was said of layers that are no longer here; whether there was any.
    fn fallen(&self, ask: &mut Ask) -> Result<bool, Error> {
        let held = self.store.images()?;
        let still = |manifest: &Digest| {
            let mut held = held.iter();
            held.any(|held| held.layers && held.manifest == *manifest)
        };
        let before = ask.have_layers.len();
        ask.have_layers.retain(still);
        Ok(ask.have_layers.len() < before)
    }

    /// Goes on with what an earlier process began, if it began this and the server still has it.
    fn resume(
        &self,
        name: &str,
        among: usize,
        report: &mut Report,
    ) -> Result<Option<Box<Whole>>, Error> {
        let Some(apply) = self.store.resume(name)? else {
            return Ok(None);
        };
        let frames = |range: &std::ops::Range<u32>| u64::from(range.end - range.start);
        let left: u64 = apply.missing().iter().map(frames).sum();
        let all = apply.weights().count();
        let total = apply.header().records;
        let lanes = Lanes::open(&self.server, &self.args.image, None, among, Vec::new());
        if self.fetch(&apply, u32::MAX, total, None, lanes)? == Fetched::Changed {
            return Ok(None);
        }
        report.frames_resumed = u64::try_from(all).unwrap_or(0).saturating_sub(left);
        let session = Session::new(&self.server);
        self.check(&session, &apply.header().manifest)?;
        if left == 0 && !self.is_current(&session, &apply)? {
            return Ok(None);
        }
        self.finish(&session, &apply, report, among).map(Some)
    }

    /// Whether a tag still stands for what was begun: where nothing was left to ask for, nobody has said so.
    fn is_current(&self, session: &Session, apply: &Apply) -> Result<bool, Error> {
        if matches!(self.args.image.target, Target::Digest(_)) {
            return Ok(true);
        }
        let mut ask = Ask {
            part: Some(Part {
                etag: apply.etag().to_owned(),
                first: u32::MAX,
                end: Some(u32::MAX),
            }),
            ..apply.ask().clone()
        };
        match self.asked(session, &mut ask)? {
            Answered::Bundle { etag, .. } => Ok(etag == apply.etag()),
            Answered::None(_) => Ok(false),
        }
    }

    /// Asks until there is an answer.
    fn asked(&self, session: &Session, ask: &mut Ask) -> Result<Answered, Error> {
        let mut waiting = Waiting::new();
        let mut said: Option<Instant> = None;
        loop {
            match ask::once(session, &self.args.image, ask) {
                Ok(answered) => return Ok(answered),
                Err(error) if let Some(why) = waiting.gives_up(&error) => {
                    return Ok(Answered::None(why));
                }
                Err(error) => waiting.after(error, &mut |what, progress| {
                    let image = &self.args.image;
                    // There is no bar to see.
                    if !io::stderr().is_terminal() && said.is_none_or(|at| at.elapsed() >= SAID) {
                        said = Some(Instant::now());
                        self.view.say(&format!("{image} {what} by the server"));
                    }
                    let unit = match progress.stage {
                        Stage::Index => Unit::Layers,
                        _ => Unit::Bytes,
                    };
                    self.view
                        .begin_of(&format!("{image} {what}"), unit, progress.total);
                    self.view.at(progress.done);
                    // The other shares were not given out either.
                    ask.pieces = false;
                })?,
            }
        }
    }

    fn fetch(
        &self,
        apply: &Apply,
        shared: u32,
        total: u64,
        first: Option<Reading>,
        lanes: Lanes,
    ) -> Result<Fetched, Error> {
        self.view.begin(&self.args.image.to_string(), total);
        let work = Work::new(apply.weights(), apply.missing(), lanes.len() + 1, shared);
        Fetch::new(&self.server, &self.args.image, apply, work, &self.view).run(first, lanes)
    }

    /// Asks for what is missing, file by file: what no frame brought, or was altered in the store.
    fn finish(
        &self,
        session: &Session,
        apply: &Apply,
        report: &mut Report,
        among: usize,
    ) -> Result<Box<Whole>, Error> {
        for _ in 0..ROUNDS {
            match apply.finish()? {
                Outcome::Complete(image) => {
                    report.contents = Counts::of(&apply.counts());
                    return Ok(image);
                }
                Outcome::Need(contents) => {
                    self.files(session, apply, &contents, among)?;
                }
            }
        }
        Err(Error::Said(
            "files of the store disappear as they are written: is somebody else cleaning it?"
                .to_owned(),
        ))
    }

    /// Contents one by one, each by whichever of `among` connections has nothing to do.
    fn files(
        &self,
        session: &Session,
        apply: &Apply,
        contents: &[(FileDigest, u64)],
        among: usize,
    ) -> Result<(), Error> {
        let manifest = Digest::of(Algorithm::Sha256, &apply.header().manifest);
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let some = |session: &Session| -> Result<(), Error> {
            while !failed.load(Ordering::Relaxed)
                && let Some((content, _)) = contents.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let done = self.file(session, apply, content, manifest);
                failed.fetch_or(done.is_err(), Ordering::Relaxed);
                done?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let others = 1..among.min(contents.len());
            let others: Vec<_> = others
                .map(|_| scope.spawn(|| some(&Session::new(&self.server))))
                .collect();
            let mut result = some(session);
            for other in others {
                let done = other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(done);
            }
            result
        })
    }

    /// One content, at once.
    fn file(
        &self,
        session: &Session,
        apply: &Apply,
        content: &FileDigest,
        manifest: Digest,
    ) -> Result<(), Error> {
        let path = names::file(&self.args.image, Digest::from(*content), manifest);
        let mut patience = Patience::new();
        loop {
            match self.try_file(session, apply, content, &path) {
                Err(error) => patience.after(error)?,
                done => return done,
            }
        }
    }

    fn try_file(
        &self,
        session: &Session,
        apply: &Apply,
        content: &FileDigest,
        path: &str,
    ) -> Result<(), Error> {
        let mut answer = session.send(&Request::get(path, &[]))?;
        if answer.status != http::StatusCode::OK {
            return Err(answer.refusal(&self.server, &format!("the file {content}")));
        }
        let mut receive = apply.receive(content)?;
        let mut piece = vec![0; PIECE];
        loop {
            let doing = format!("{content} was cut");
            match answer.body.read(&mut piece).map_err(Error::cut(doing))? {
                0 => break,
                read => receive.write(&piece[..read])?,
            }
        }
        self.view.at(self.server.received());
        Ok(receive.commit()?)
    }
}

/// What is done about a bundle that cannot be applied.
enum Next {
    /// The request was changed: ask anew.
    Ask,
    /// Why there is nothing left but its layers.
    Layers(String),
}

/// It may be what it was made against: asked for once more, against nothing. Layers prove what they are.
fn next(ask: &mut Ask, error: pierhead_toc::Error) -> Result<Next, Error> {
    use pierhead_toc::Error as Of;
    match error {
        Of::Malformed { .. } | Of::Digest { .. } | Of::Missing(_) if !ask.have.is_empty() => {
            ask.have.clear();
            ask.have_layers.clear();
            Ok(Next::Ask)
        }
        Of::Malformed { .. } | Of::Digest { .. } => Ok(Next::Layers(error.to_string())),
        error => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pierhead_toc::Error as Of;

    #[test]
    fn what_cannot_be_applied_is_asked_for_once_more_and_then_by_layers() {
        let wrong = || Of::Malformed {
            what: "bundle",
            why: "x".to_owned(),
        };
        let have = Digest::of(Algorithm::Sha256, b"have");
        let mut ask = Ask {
            have: vec![have],
            have_layers: vec![have],
            ..Ask::default()
        };
        assert!(matches!(next(&mut ask, wrong()), Ok(Next::Ask)));
        assert_eq!(ask, Ask::default());
        let layers = next(&mut ask, wrong());
        assert!(matches!(layers, Ok(Next::Layers(why)) if why.contains('x')));
        ask.have.push(have);
        let gone = Of::Missing("have".to_owned());
        assert!(matches!(next(&mut ask, gone), Ok(Next::Ask)));
        let full = Of::Io {
            doing: "write".to_owned(),
            source: std::io::ErrorKind::StorageFull.into(),
        };
        assert!(next(&mut ask, full).is_err());
    }
}
