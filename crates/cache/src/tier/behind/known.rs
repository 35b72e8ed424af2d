//! What is known of starts: which chunks of which blobs they read, and of which that is still to be looked at.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pierhead_oci::Digest;

use super::spans::Spans;

/// Blobs whose hot ranges are remembered; of more the oldest are forgotten.
const MAX_KNOWN: usize = 4096;

/// What is known of starts, and what is to be made of it.
#[derive(Default)]
pub(super) struct Known {
    spans: HashMap<Digest, Wish>,
    /// Of `spans`, the oldest first.
    order: VecDeque<Digest>,
    /// Those to be looked at.
    todo: VecDeque<Digest>,
}

/// What of one blob is to be on the fast tier, and how long it is kept there.
#[derive(Clone)]
pub(super) struct Wish {
    pub(super) spans: Arc<Spans>,
    pub(super) priority: f64,
}

impl Known {
    pub(super) fn learn(&mut self, digest: Digest, wish: Wish) {
        if self.spans.insert(digest, wish).is_none() {
            self.order.push_back(digest);
        }
        if self.order.len() > MAX_KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.spans.remove(&oldest);
        }
        self.look_at(&digest);
    }

    pub(super) fn wish(&self, digest: &Digest) -> Option<&Wish> {
        self.spans.get(digest)
    }

    /// Ranks it anew: says what it is.
    pub(super) fn rank(&mut self, digest: &Digest, priority: f64) -> Option<&Wish> {
        let wish = self.spans.get_mut(digest)?;
        wish.priority = priority;
        Some(wish)
    }

    /// The disk has it now, or it is asked for.
    pub(super) fn look_at(&mut self, digest: &Digest) {
        if self.spans.contains_key(digest) && !self.todo.contains(digest) {
            self.todo.push_back(*digest);
        }
    }

    /// Not before it is said anew.
    pub(super) fn forget(&mut self, digest: &Digest) {
        self.spans.remove(digest);
        self.order.retain(|it| it != digest);
        self.take(digest);
    }

    pub(super) fn is_done(&self) -> bool {
        self.todo.is_empty()
    }

    /// What is looked at next, of those that may be.
    pub(super) fn next(&self, is_held: impl Fn(&Digest) -> bool) -> Option<Digest> {
        self.todo.iter().find(|digest| !is_held(digest)).copied()
    }

    /// It is being looked at.
    pub(super) fn take(&mut self, digest: &Digest) {
        self.todo.retain(|it| it != digest);
    }
}
