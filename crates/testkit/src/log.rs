//! Captures the log lines of the code under test, in the daemon's text format.

use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, OnceLock};

use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Subscriber};
use tracing_subscriber::fmt::MakeWriter;

/// Captures the log of this thread (levels info and above), including tasks of a current-thread
/// runtime, until the result is dropped.
pub fn capture() -> Lines {
    // `tracing` caches for each callsite whether any subscriber wants its events. While the process
    // has a single subscriber, `tracing` asks the subscriber of the thread that reaches the
    // callsite first, and that thread may have no subscriber. With this second subscriber,
    // `tracing` asks all subscribers.
    static SECOND: OnceLock<Dispatch> = OnceLock::new();
    SECOND.get_or_init(|| Dispatch::new(subscriber(&Text::default())));
    let text = Text::default();
    let guard = tracing::subscriber::set_default(subscriber(&text));
    Lines {
        text,
        _guard: Some(guard),
    }
}

/// Captures the log of all threads of this process (levels info and above) until the process ends.
///
/// # Panics
/// Panics if a process calls this function twice.
pub fn capture_process() -> Lines {
    let text = Text::default();
    let set = tracing::subscriber::set_global_default(subscriber(&text));
    set.expect("one capture in a process");
    Lines { text, _guard: None }
}

fn subscriber(text: &Text) -> impl Subscriber + Send + Sync + use<> {
    tracing_subscriber::fmt()
        .with_writer(text.clone())
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .finish()
}

/// The log lines that [`capture`] or [`capture_process`] captures.
pub struct Lines {
    text: Text,
    _guard: Option<DefaultGuard>,
}

impl Lines {
    /// Returns all captured lines so far.
    pub fn text(&self) -> String {
        self.text.lock().clone()
    }

    /// Returns the captured lines that contain this text.
    pub fn with(&self, part: &str) -> Vec<String> {
        let text = self.text();
        let lines = text.lines().filter(|line| line.contains(part));
        lines.map(str::to_owned).collect()
    }
}

#[derive(Clone, Default)]
struct Text(Arc<Mutex<String>>);

impl Text {
    fn lock(&self) -> parking_lot::MutexGuard<'_, String> {
        self.0.lock()
    }
}

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Text {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_captured_after_a_thread_without_capture_wrote_it_first() {
        fn log() {
            tracing::info!("the line");
        }
        let lines = capture();
        std::thread::spawn(log).join().expect("no panic");
        log();
        assert_eq!(lines.with("the line").len(), 1);
    }
}
