//! Patches from one image to another: made in the background, or, while somebody waits, within a bound of bytes.

use std::cell::RefCell;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::documents::Documents;
use super::figures::count;
use super::kept::{Draft, Kept};
use super::pace::Share;
use super::serve::{Base, VERSION, header, key, needed};
use super::{Have, Inner};
use crate::layer::Pace as _;
use crate::patch::{Effort, Level};
use crate::plan::{self, prepare};
use crate::{Content, Error, Table};

/// Bytes that may have to be compressed while somebody waits: about a second and a half, by level 3 against as many bytes.
const QUICK: u64 = 48 << 20;

/// Names the plan of a pair that was made ahead of time.
pub(super) fn idle(want: &Digest, have: &Digest) -> Content {
    Content::of(format!("pair {VERSION} {want} {have}").as_bytes())
}

/// Names the plan of a pair that was made while somebody waited.
pub(super) fn quick(want: &Digest, have: &Digest) -> Content {
    Content::of(format!("quick {VERSION} {want} {have}").as_bytes())
}

impl Inner {
    /// Makes the plan of a pair of images with the best patches. What was served of that pair before is planned anew.
    pub(super) fn prepare_pair(
        &self,
        new: &Digest,
        old: &Digest,
        share: &mut Share,
    ) -> Result<(), Error> {
        let path = idle(new, old);
        if self.open(&path)?.is_some_and(|plan| self.is_sound(&plan)) {
            return Ok(());
        }
        let tables = [new, old].map(|digest| Table::open(&self.shelf.table(digest)));
        let [want, have] = tables;
        let share = RefCell::new(share);
        let mut pause = |bytes| share.borrow_mut().pause(bytes);
        let made = self.patches(&path, new, &want?, old, have?, Effort::Idle, &mut pause);
        match made {
            // Forgotten since.
            Err(Error::Missing(_)) => return Ok(()),
            made => made?,
        };
        count(&self.figures.pairs);
        self.forget(&quick(new, old));
        for (layers, has_layers) in [(false, false), (false, true), (true, false), (true, true)] {
            let have = Have {
                manifest: *old,
                is_known: true,
                has_layers,
            };
            self.forget(&key(new, &[have], layers));
        }
        Ok(())
    }

    /// The plan of a pair while somebody waits; `None` when that would take too long, or cannot be made.
    pub(super) fn quick(
        &self,
        new: &Digest,
        old: &Digest,
        have: &Table,
    ) -> Result<Option<Arc<Kept>>, Error> {
        let want = Table::open(&self.shelf.table(new))?;
        // Mapped: a second handle costs nothing.
        let again = || Table::open(&self.shelf.table(old));
        let base = base(old, again()?);
        let contents = want.contents();
        let lacks = needed(&want, std::slice::from_ref(&base), false);
        let sizes = (0..).zip(&lacks).filter(|(_, is_needed)| **is_needed);
        let sum: u64 = sizes.filter_map(|(number, _)| contents.size(number)).sum();
        if sum > QUICK || have.contents().is_empty() {
            return Ok(None);
        }
        let effort = Effort::Level(Level::FAST);
        let path = quick(new, old);
        match self.patches(&path, new, &want, old, again()?, effort, &mut |_| Ok(())) {
            Ok(plan) => Ok(Some(plan)),
            Err(Error::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "two images, and how to go about it"
    )]
    fn patches(
        &self,
        path: &Content,
        new: &Digest,
        want: &Table,
        old: &Digest,
        have: Table,
        effort: Effort,
        pause: &mut dyn FnMut(u64) -> Result<(), Error>,
    ) -> Result<Arc<Kept>, Error> {
        let source = self.contents(&[*new, *old]);
        let documents = Documents::read(&*self.blobs, new)?;
        let mut draft = Draft::begin(&self.shelf.plan(path))?;
        let mut frames = Vec::new();
        let expected = self.expected(new, &documents, want, &source)?;
        prepare(
            plan::Image::with_layers(want),
            plan::Image::mounted(&have),
            &expected,
            &source,
            effort,
            pause,
            &mut |frame, coded| {
                draft.payload(coded.coding, &coded.payload)?;
                frames.push(frame.clone());
                Ok(())
            },
        )?;
        let bases = [base(old, have)];
        let sum = draft.bytes();
        let header = header(&documents, want, &bases, &frames, (true, sum), 1)?;
        let (prelude, body) = header.encode(1)?;
        Ok(self.hold(path, draft.finish(&prelude, &body)?))
    }
}

/// An image of which the worker has all.
fn base(manifest: &Digest, table: Table) -> Base {
    Base {
        have: Have {
            manifest: *manifest,
            is_known: true,
            has_layers: true,
        },
        table: Some(table),
    }
}
