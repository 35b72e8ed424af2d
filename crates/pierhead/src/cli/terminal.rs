//! Escapes text from clients, registries and images, so that the text cannot control a terminal or
//! forge log lines.

use std::fmt::{self, Write as _};

/// Maximum number of characters of a platform in a printed table. A longer text would widen every
/// row of the table.
pub(crate) const MAX_PLATFORM_CHARS: usize = 64;

/// Returns `text` with escaped control characters, truncated after `max_chars` characters.
pub(crate) fn escaped(text: &str, max_chars: usize) -> String {
    let mut all = String::new();
    let mut writer = EscapingWriter {
        writer: &mut all,
        left: max_chars,
    };
    // A write to a string fails only at the limit of characters.
    if writer.write_str(text).is_err() {
        all.push('…');
    }
    all
}

/// Returns `text` with escaped control characters, except line breaks, for messages of several
/// lines.
pub(crate) fn escaped_lines(text: &str) -> String {
    let lines = text.split('\n').map(|line| escaped(line, usize::MAX));
    lines.collect::<Vec<_>>().join("\n")
}

/// A writer that escapes line breaks, terminal control characters and bidirectional overrides. A
/// write of more than `left` characters fails.
pub(crate) struct EscapingWriter<'a> {
    pub(crate) writer: &'a mut dyn fmt::Write,
    pub(crate) left: usize,
}

impl fmt::Write for EscapingWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let escaped = match character {
                '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    Some(character.escape_unicode().to_string())
                }
                _ if character.is_control() => Some(character.escape_default().to_string()),
                _ => None,
            };
            let chars = escaped.as_ref().map_or(1, String::len);
            self.left = self.left.checked_sub(chars).ok_or(fmt::Error)?;
            match escaped {
                Some(escaped) => self.writer.write_str(&escaped)?,
                None => self.writer.write_char(character)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{escaped, escaped_lines};

    #[test]
    fn control_characters_are_escaped_and_long_text_is_truncated() {
        assert_eq!(escaped("linux/arm64/v8", 14), "linux/arm64/v8");
        assert_eq!(escaped("linux/arm64/v8", 5), "linux…");
        let hostile = "li\u{1b}[2J\u{7}\nforged\u{9b}\u{202e}";
        assert_eq!(
            escaped(hostile, 64),
            "li\\u{1b}[2J\\u{7}\\nforged\\u{9b}\\u{202e}"
        );
        assert_eq!(escaped(&"\n".repeat(64), 64).chars().count(), 65);
        assert_eq!(escaped_lines("one\ntwo\u{7}"), "one\ntwo\\u{7}");
    }
}
