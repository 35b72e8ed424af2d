//! One request to whichever address of an upstream can answer it: the first that is well, the next when
//! that one fails, and both when it is silent.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use pierhead_oci::Digest;
use tokio::time::sleep;

use crate::Error;
use crate::error::Fault;
use crate::guest::Guest;
use crate::health::{Admission, Turn};
use crate::metrics::Errand;
use crate::origin::{Origin, Place};
use crate::retry::{Patience, after};

/// The next address is asked beside a silent one after so long. Three addresses are asked within two
/// seconds, which leaves time for an answer within the five that clients are promised.
const HEDGE: Duration = Duration::from_secs(1);

/// The addresses of one upstream.
pub(crate) type Places = Arc<[Arc<Place>]>;

/// All addresses of one upstream in the order of preference, never none; and in whose name they are asked.
#[derive(Clone)]
pub(crate) struct Addresses {
    places: Places,
    guest: Option<Arc<Guest>>,
}

impl Addresses {
    pub(crate) fn new(places: Places, guest: Option<Arc<Guest>>) -> Self {
        Self { places, guest }
    }

    /// Those that may be asked: a client's login goes to no mirror.
    fn allowed(&self) -> impl Iterator<Item = Origin> {
        let places = self.places.iter();
        let places = places.filter(|place| self.guest.is_none() || !place.mirror);
        places.map(|place| Origin {
            place: Arc::clone(place),
            guest: self.guest.clone(),
        })
    }

    /// All, the least doubtful first, and else in the order of preference.
    fn ordered(&self, doubt: impl Fn(&Place) -> u8) -> Vec<Origin> {
        let mut all: Vec<_> = self.allowed().collect();
        all.sort_by_key(|origin| doubt(origin));
        all
    }

    /// The address of which errors and metrics speak when none was asked.
    pub(crate) fn first(&self) -> Result<Origin, Error> {
        let first = self.allowed().next();
        first.ok_or_else(|| Error::Config {
            what: "an upstream has no address of its own, mirrors only".to_owned(),
        })
    }

    /// Each, whatever is known of it.
    pub(crate) fn everyone(&self) -> impl Iterator<Item = Origin> {
        self.allowed()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.allowed().count()
    }

    /// Whether none of them answered when it was last asked.
    pub(crate) fn is_failing(&self) -> bool {
        self.places.iter().all(|place| place.health.is_failing())
    }

    /// Whether all that may be asked have sent other content under this digest lately.
    pub(crate) fn all_sent_wrong(&self, digest: &Digest) -> bool {
        self.allowed().all(|origin| origin.distrust.has(digest))
    }

    /// All, whatever is known of their health; each with its turn.
    pub(crate) fn insist(&self) -> impl Iterator<Item = (Origin, Turn)> {
        self.allowed().map(|origin| {
            let turn = origin.health.insist();
            (origin, turn)
        })
    }
}

/// For [`reach`]: nothing speaks against any address.
pub(crate) fn none(_: &Place) -> u8 {
    0
}

/// Runs `attempt` at the addresses until one succeeds, all fail for good, or patience or budgets end.
/// `image` is for the log. `doubt` is what else speaks against an address. Cancel safe when `attempt` is.
///
/// A 404, 401 or 403 is a verdict only when no address has more: see [`Failures::verdict`].
pub(crate) async fn reach<T, F>(
    addresses: &Addresses,
    (errand, image): (Errand, &(impl Display + Sync)),
    patience: Patience,
    doubt: impl Fn(&Place) -> u8,
    attempt: impl Fn(Origin) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let first = addresses.first()?;
    let order = addresses.ordered(doubt);
    // Upstreams limit the rate of a login: that of one guest says nothing of ours, or of another's.
    let errand = addresses.guest.is_none().then_some(errand);
    let mut failures = 0;
    let mut seen: Option<Error> = None;
    loop {
        let round = match round(&order, (errand, image), &attempt).await {
            Ok(value) => return Ok(value),
            Err(round) => round,
        };
        let Some((origin, error)) = round.verdict() else {
            return Err(first.transport("none of its addresses was asked"));
        };
        // That it is down is worth less than how it failed a moment ago.
        if let (Error::Down { .. }, Some(seen)) = (&error, &seen) {
            return Err(seen.clone());
        }
        let Some(wait) = after(&error, failures, patience, &origin) else {
            return Err(error);
        };
        seen = Some(error);
        sleep(wait).await;
        failures += 1;
    }
}

/// Every address at most once.
async fn round<T, F>(
    order: &[Origin],
    (errand, image): (Option<Errand>, &(impl Display + Sync)),
    attempt: &impl Fn(Origin) -> F,
) -> Result<T, Failures>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut failures = Failures::default();
    let mut failed: Option<(usize, String)> = None;
    let mut waiting = Waiting {
        order,
        next: 0,
        errand,
        asked: false,
    };
    let mut running = FuturesUnordered::new();
    loop {
        if let Some((nth, turn)) = waiting.next(&mut failures) {
            let origin = &order[nth];
            let asked = attempt(origin.clone());
            running.push(async move {
                let result = asked.await;
                turn.ended(errand, &result);
                (nth, result)
            });
        }
        let more = waiting.is_more();
        let ended = tokio::select! {
            ended = running.next() => ended,
            () = sleep(HEDGE), if more => continue,
        };
        match ended {
            Some((nth, Ok(value))) => {
                if nth > 0 || !failures.0.is_empty() {
                    order[nth].metrics.failovers.inc();
                }
                if let Some((other, error)) = failed {
                    let (origin, other) = (&order[nth], order[other].health.address());
                    let (upstream, address) = (&origin.name, origin.health.address());
                    tracing::info!(%upstream, %image, failed_address = %other, %address, %error, "another address answered");
                }
                return Ok(value);
            }
            Some((nth, Err(error))) => {
                // An open circuit was logged already, and a mirror may lack an image.
                if error.fault() == Fault::Upstream && !matches!(error, Error::RateLimited { .. }) {
                    failed = Some((nth, error.to_string()));
                }
                failures.0.push((order[nth].clone(), error));
            }
            None if more => {}
            None => return Err(failures),
        }
    }
}

/// Who is still to be asked in a round.
struct Waiting<'a> {
    order: &'a [Origin],
    next: usize,
    errand: Option<Errand>,
    asked: bool,
}

impl Waiting<'_> {
    /// The next one that is well. Once all turn out to be down, those that have been it for long.
    fn next(&mut self, failures: &mut Failures) -> Option<(usize, Turn)> {
        while let Some(origin) = self.order.get(self.next) {
            let nth = self.next;
            self.next += 1;
            match origin.health.admit(self.errand, self.order.len() == 1) {
                Admission::Go(turn) => {
                    self.asked = true;
                    return Some((nth, turn));
                }
                Admission::Down(error) | Admission::Limited(error) => {
                    failures.0.push((origin.clone(), error));
                }
            }
        }
        if self.asked {
            return None;
        }
        for (nth, origin) in self.order.iter().enumerate() {
            if let Admission::Go(turn) = origin.health.admit(self.errand, true) {
                self.asked = true;
                failures
                    .0
                    .retain(|(other, _)| !Arc::ptr_eq(&other.place, &origin.place));
                return Some((nth, turn));
            }
        }
        None
    }

    fn is_more(&self) -> bool {
        self.next < self.order.len()
    }
}

/// How each address failed.
#[derive(Default)]
struct Failures(Vec<(Origin, Error)>);

impl Failures {
    /// What they say together. A registry's own 404 or refusal stands, whatever a mirror's trouble; any
    /// trouble of the registry outweighs a mirror's 404: it may lack what the registry has.
    fn verdict(self) -> Option<(Origin, Error)> {
        let weight = |(origin, error): &(Origin, Error)| match (error, error.fault()) {
            (_, Fault::Request) if !origin.mirror => 7,
            (Error::Transport { .. } | Error::Status { .. }, _) => 6,
            (Error::Protocol { .. }, _) => 5,
            (Error::RateLimited { .. }, _) => 4,
            (Error::Down { .. }, _) => 3,
            (_, Fault::Request) => 2,
            _ => 1,
        };
        // Of equals the last: the registry itself comes after its mirrors.
        self.0.into_iter().max_by_key(weight)
    }
}
