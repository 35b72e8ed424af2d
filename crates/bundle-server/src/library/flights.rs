//! One thread at a time for one question, and so many at once for all of them.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};

use super::lock;
use pierhead_toc::Content;

/// What is being worked on.
pub(super) struct Flights {
    running: Mutex<HashSet<Content>>,
    ended: Condvar,
    most: usize,
}

/// The right to work on a question, until this is dropped.
pub(super) struct Flight<'a>(&'a Flights, Content);

impl Flights {
    pub(super) fn new(most: usize) -> Self {
        Self {
            running: Mutex::default(),
            ended: Condvar::new(),
            most,
        }
    }

    /// Waits until nobody works on `question`, and there is room for one more. Blocks.
    pub(super) fn begin(&self, question: Content) -> Flight<'_> {
        let waits = |running: &mut HashSet<Content>| {
            running.contains(&question) || running.len() >= self.most
        };
        let running = self.ended.wait_while(lock(&self.running), waits);
        let mut running = running.unwrap_or_else(PoisonError::into_inner);
        running.insert(question);
        Flight(self, question)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        lock(&self.0.running).remove(&self.1);
        self.0.ended.notify_all();
    }
}
