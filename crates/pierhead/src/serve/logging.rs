//! Writes the log to standard error, and changes its level at run time.

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

use crate::cli::terminal::EscapingWriter;
use crate::config::{Log, LogFormat};

/// Maximum number of characters of a field value. The text format of the log truncates longer
/// values.
const MAX_VALUE_CHARS: usize = 4096;

/// The modules of h2 in which a client causes one warning for each frame or connection, so that it
/// could fill the log. h2 0.4.20 has no warning in any other module:
/// - `streams` warns of each connection with too many resets. pierhead itself logs such connections
///   once a minute.
/// - `ping_pong` warns of each acknowledgement of a PING that h2 never sent, and ignores the frame.
const H2_NOISE: [&str; 2] = ["h2::proto::streams", "h2::proto::ping_pong"];

/// Changes the log level of the running process.
pub(crate) struct Level(reload::Handle<Targets, Registry>);

impl Level {
    /// Sets the log level. The new level takes effect immediately.
    pub(crate) fn set(&self, log: &Log) {
        // This call fails only after the subscriber is dropped, when no log exists any more.
        let _ = self.0.reload(targets(&log.level));
    }
}

/// Starts the log. The caller must call this function once, before the first log line.
pub(crate) fn start(log: &Log) -> Level {
    let (filter, handle) = reload::Layer::new(targets(&log.level));
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // This call fails only if a test starts the log twice in one process.
    let _ = match log.format {
        LogFormat::Text => registry
            .with(
                lines
                    .fmt_fields(Escaped)
                    .with_ansi(std::io::stderr().is_terminal())
                    .with_target(false),
            )
            .try_init(),
        LogFormat::Json => registry
            .with(
                lines
                    .json()
                    .flatten_event(true)
                    .with_current_span(false)
                    .with_span_list(false),
            )
            .try_init(),
    };
    Level(handle)
}

/// Writes `message name=value …` like the default, but escapes control characters and truncates
/// long values. Therefore, text from clients or registries cannot forge a log line or control a
/// terminal. The JSON format needs no such writer, since JSON escapes control characters.
struct Escaped;

impl<'writer> FormatFields<'writer> for Escaped {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut line = Line {
            writer: &mut writer,
            is_empty: true,
            result: Ok(()),
        };
        fields.record(&mut line);
        line.result
    }
}

struct Line<'a> {
    writer: &'a mut dyn fmt::Write,
    is_empty: bool,
    result: fmt::Result,
}

impl Line<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) -> fmt::Result {
        let separator = if self.is_empty { "" } else { " " };
        self.is_empty = false;
        match field.name() {
            "message" => self.writer.write_str(separator)?,
            name => write!(self.writer, "{separator}{name}=")?,
        }
        let mut value_writer = EscapingWriter {
            writer: &mut *self.writer,
            left: MAX_VALUE_CHARS,
        };
        match value_writer.write_fmt(value) {
            // The value exceeded its maximum length; the writer itself did not fail.
            Err(fmt::Error) if value_writer.left == 0 => self.writer.write_char('…'),
            result => result,
        }
    }
}

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_ok() {
            self.result = self.write(field, format_args!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.record_debug(field, &format_args!("{value}")),
            _ => self.record_debug(field, &value),
        }
    }
}

/// Parses the log level, which pierhead has already validated. Uses `Targets`, since `EnvFilter`
/// needs regular expressions and would add a sixth to the size of the program.
///
/// The modules [`H2_NOISE`] of h2 log at level error only, unless the level names h2 or is debug.
fn targets(level: &str) -> Targets {
    let targets: Targets = level.parse().unwrap_or_default();
    let is_shown = |level| targets.would_enable("h2", &level);
    let is_named = targets.iter().any(|(target, _)| target.starts_with("h2"));
    match is_named || is_shown(tracing::Level::DEBUG) || !is_shown(tracing::Level::WARN) {
        true => targets,
        false => targets.with_targets(H2_NOISE.map(|module| (module, tracing::Level::ERROR))),
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::io;
    use std::sync::Arc;

    use super::*;

    fn escaped(value: &str) -> String {
        let mut text = String::new();
        let mut writer = EscapingWriter {
            writer: &mut text,
            left: MAX_VALUE_CHARS,
        };
        let _ = writer.write_str(value);
        text
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_of_bounded_length() {
        let log = Log::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .with_target(false)
            .fmt_fields(Escaped);
        let long = "x".repeat(3 * MAX_VALUE_CHARS);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let error = "no\nFATAL forged";
            tracing::info!(bytes = 7, text = "a b", %error, long, last = true, "what\n{error}");
        });
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let part =
            "what\\nno\\nFATAL forged bytes=7 text=\"a b\" error=no\\nFATAL forged long=\"xxx";
        assert!(text.contains(part), "{text}");
        assert!(text.ends_with("xxx… last=true\n"), "{text}");
        assert!(text.len() < 2 * MAX_VALUE_CHARS);
    }

    #[test]
    fn warnings_of_h2_that_a_client_can_repeat_need_a_level_that_asks_for_them() {
        for (level, is_shown) in [
            ("warn", false),
            ("info", false),
            ("info,pierhead_remote=debug", false),
            ("debug", true),
            ("info,h2=warn", true),
            ("info,h2::proto=warn", true),
            ("off", false),
        ] {
            let targets = targets(level);
            for module in ["h2::proto::streams::recv", "h2::proto::ping_pong"] {
                let of_h2 = targets.would_enable(module, &tracing::Level::WARN);
                assert_eq!(of_h2, is_shown, "{level} {module}");
            }
            for module in ["h2::codec", "h2::proto::connection", "pierhead_proxy"] {
                let is_enabled = targets.would_enable(module, &tracing::Level::WARN);
                assert_eq!(is_enabled, level != "off", "{level} {module}");
            }
        }
        assert!(!targets("off").would_enable("h2", &tracing::Level::ERROR));
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escaped("a b é 日"), "a b é 日");
        assert_eq!(escaped("a\nINFO b\r\u{1b}[2J"), "a\\nINFO b\\r\\u{1b}[2J");
        assert_eq!(
            escaped("\u{9b}\u{202e}\u{2028}"),
            "\\u{9b}\\u{202e}\\u{2028}"
        );
    }
}
