//! Progress of long work: a bar on a terminal, a line an item otherwise, every event as JSON.

use std::io;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::Output;
use crate::api::Event;

/// Where the events of one command are shown.
pub(crate) struct View {
    output: Output,
    bar: ProgressBar,
    verb: String,
}

impl View {
    /// The bar goes to standard error, and shows only if that is a terminal.
    pub(crate) fn new(output: Output, verb: &str) -> Self {
        let bar = ProgressBar::with_draw_target(
            None,
            if output.json {
                ProgressDrawTarget::hidden()
            } else {
                ProgressDrawTarget::stderr()
            },
        );
        let style = ProgressStyle::with_template(
            "{bar:24} {bytes:>10}/{total_bytes} {bytes_per_sec} {wide_msg}",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
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
                done,
                blobs,
                bytes_done,
                bytes,
            } => {
                self.bar.set_length(*bytes);
                self.bar.set_position(*bytes_done);
                self.bar.set_message(format!("{done}/{blobs} {subject}"));
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
                    true => self.output.line(format!("{verb} {subject}")),
                    false => self.output.line(format!("failed {subject}: {message}")),
                })
            }
            Event::Done { good, bad } => {
                self.bar.finish_and_clear();
                self.output
                    .line(format!("{} {good}, failed {bad}", self.verb))
            }
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
