//! Progress of long work: a bar on a terminal, a line an item otherwise, every event as JSON.

use std::io;

use super::output::Output;
use crate::api::Event;
use crate::progress::{Progress, Unit};
use crate::verbosity;

/// Where the events of one command are shown.
pub(crate) struct View {
    output: Output,
    bar: Progress,
    verb: String,
}

impl View {
    /// The bar goes to standard error, and shows only if that is a terminal.
    pub(crate) fn new(output: Output, verb: &str) -> Self {
        let bar = Progress::new(output.json);
        bar.begin(verb, Unit::Bytes, 0);
        Self {
            output,
            bar,
            verb: verb.to_owned(),
        }
    }

    /// One event.
    pub(crate) fn show(&mut self, event: &Event) -> io::Result<()> {
        if self.output.json {
            return self.output.object(event);
        }
        match event {
            Event::Progress {
                subject,
                bytes_done,
                bytes,
                ..
            } => {
                self.bar.update(subject, *bytes_done, *bytes);
                Ok(())
            }
            Event::Item {
                subject,
                ok,
                message,
            } => {
                let (verb, message) = (&self.verb, message.as_deref().unwrap_or("no reason given"));
                // A reason often begins with the image that the line names already.
                let message = message
                    .strip_prefix(subject.as_str())
                    .and_then(|rest| rest.strip_prefix(": "))
                    .unwrap_or(message);
                // The bar moves away for a line and comes back below it.
                self.bar.suspend(|| match ok {
                    true if verbosity::is_quiet() => Ok(()),
                    true => self.output.line(format!("{verb} {subject}")),
                    false => self.output.line(format!("failed {subject}: {message}")),
                })
            }
            Event::Done { good, bad } => {
                self.bar.finish();
                match verbosity::is_quiet() {
                    true => Ok(()),
                    false => self
                        .output
                        .line(format!("{} {good}, failed {bad}", self.verb)),
                }
            }
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish();
    }
}
