//! Shows the events of `cache warm` and `cache verify`: a progress bar on a terminal, a line per
//! item, or JSON.

use std::io;

use super::output::Output;
use crate::admin::api::Event;
use crate::cli::progress::{Progress, Unit};
use crate::cli::verbosity;

/// Shows the events of one `cache warm` or `cache verify` command.
pub(crate) struct EventView {
    output: Output,
    bar: Progress,
    verb: String,
}

impl EventView {
    /// Creates the view. If standard error is a terminal, the view draws a progress bar there.
    pub(crate) fn new(output: Output, verb: &str) -> Self {
        let bar = Progress::new(output.json);
        bar.begin(verb, Unit::Bytes, 0);
        Self {
            output,
            bar,
            verb: verb.to_owned(),
        }
    }

    /// Shows one event of the command.
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
                // Removes the image from the start of the message, since the printed line already
                // has this name.
                let message = message
                    .strip_prefix(subject.as_str())
                    .and_then(|rest| rest.strip_prefix(": "))
                    .unwrap_or(message);
                // Hides the progress bar while the line is printed.
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

    /// Removes the progress bar from the terminal.
    pub(crate) fn finish(&self) {
        self.bar.finish();
    }
}
