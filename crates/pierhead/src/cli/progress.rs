//! The progress bar of all commands: on standard error if standard error is a terminal, and at most
//! 80 columns wide.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The unit that a progress bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Layers,
}

impl Unit {
    /// Returns the template of the bar. With a subject of [`MAX_SUBJECT_CHARS`], the bar takes at
    /// most 80 columns.
    const fn template(self) -> &'static str {
        match self {
            Self::Bytes => "{bar:16} {bytes:>10}/{total_bytes:<10} {bytes_per_sec:>13} {wide_msg}",
            Self::Layers => "{bar:16} {pos:>4}/{len} layers {wide_msg}",
        }
    }
}

/// Maximum number of characters of a progress bar's subject, such as an image, so that the subject,
/// the bytes and the rate fit into 80 columns.
const MAX_SUBJECT_CHARS: usize = 24;

/// A progress bar. All clones control the same bar.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Creates a progress bar. The bar is invisible if `hidden` is true, with `--quiet`, or without
    /// a terminal.
    pub(crate) fn new(hidden: bool) -> Self {
        Self::on(match hidden || super::verbosity::is_quiet() {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr(),
        })
    }

    fn on(target: ProgressDrawTarget) -> Self {
        let bar = ProgressBar::with_draw_target(None, target);
        Self { bar }
    }

    /// Begins a step of the work with `total` units.
    pub(crate) fn begin(&self, subject: &str, unit: Unit, total: u64) {
        let style = ProgressStyle::with_template(unit.template());
        // This call never fails: a test draws each template.
        self.bar
            .set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.reset();
        self.update(subject, 0, total);
    }

    /// Sets the subject, the number of finished units and the total, which may grow.
    pub(crate) fn update(&self, subject: &str, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_message(shorten(subject));
    }

    /// Sets the number of finished units.
    pub(crate) fn set(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Adds finished units. Any thread may call this function.
    pub(crate) fn advance(&self, units: u64) {
        self.bar.inc(units);
    }

    /// Hides the progress bar while `print` prints lines, and redraws the bar below these lines.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Removes the progress bar from the terminal.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Shortens a subject: keeps the end of a name, or the beginning of a digest.
fn shorten(subject: &str) -> String {
    let length = subject.chars().count();
    if length <= MAX_SUBJECT_CHARS {
        return subject.to_owned();
    }
    if let Some(hex) = subject.strip_prefix("sha256:") {
        return format!("sha256:{}", hex.chars().take(12).collect::<String>());
    }
    let cut = length + 1 - MAX_SUBJECT_CHARS;
    let end: String = subject.chars().skip(cut).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::io;
    use std::sync::Arc;

    use indicatif::TermLike;

    use super::*;

    /// A fake terminal of 80 columns that records its text.
    #[derive(Clone, Debug, Default)]
    struct Terminal(Arc<Mutex<Vec<String>>>);

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().push(text.to_owned());
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the last state that the bar drew.
    fn drawn(subject: &str, unit: Unit, done: u64, total: u64) -> String {
        let terminal = Terminal::default();
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(terminal.clone()), 255);
        let progress = Progress::on(target);
        progress.begin(subject, unit, total);
        progress.update(subject, done, total);
        progress.bar.force_draw();
        let lines = terminal.0.lock();
        let last = lines.iter().rfind(|line| !line.trim().is_empty());
        last.expect("a bar").clone()
    }

    #[test]
    fn a_bar_fits_80_columns_and_counts_one_unit() {
        let names = [
            "docker.io/library/redis:7",
            "registry.example.org:5000/department/team/application:2026.11.23-rc1",
            "registry.example.org/application:2 is unpacked",
            "",
        ];
        let sizes = [(0, 0), (3, 9), (1023 << 20, 1023 << 30), (1, u64::MAX)];
        for (done, total) in sizes {
            for name in names {
                for unit in [Unit::Bytes, Unit::Layers] {
                    if unit == Unit::Layers && total > 9 {
                        continue;
                    }
                    let line = drawn(name, unit, done, total);
                    let width = line.trim_end().chars().count();
                    assert!(width <= 80, "{width}: {line:?}");
                    let end: String = name.chars().rev().take(10).collect();
                    let end: String = end.chars().rev().collect();
                    assert!(line.contains(&end), "{end:?} in {line:?}");
                    let bytes = line.contains("iB") || line.contains(" B");
                    assert_eq!(bytes, unit == Unit::Bytes, "{line:?}");
                }
            }
        }
    }

    #[test]
    fn a_digest_is_shown_by_its_beginning() {
        let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
        assert_eq!(shorten(&digest), "sha256:0123456789ab");
    }
}
