//! Virtual machines under QEMU for tests. The machines have no disk image: they boot Debian's
//! kernel, busybox, and a script.

mod boot;
mod image;
mod modules;
mod newc;
mod peer;
mod qemu;
mod up;

pub(crate) use boot::{Boot, BootResult, ConsoleOutput, Logs};
pub(crate) use image::{Image, Recipe};
pub(crate) use newc::Archive;
pub(crate) use peer::Peer;
pub(crate) use qemu::{Qemu, blank, value};
pub(crate) use up::{PORTS, Up};

const INIT: &[u8] = include_bytes!("init.sh");
const ROOT: &[u8] = include_bytes!("root.sh");

/// Builds an initramfs that runs `script` with the variables `settings`. `job` may contain further
/// files.
pub(crate) fn initramfs(
    image: &Image,
    settings: &[(&str, String)],
    script: &[u8],
    mut job: Archive,
) -> Vec<u8> {
    let settings: String = settings
        .iter()
        .map(|(name, value)| format!("{name}={}\n", quote(value)))
        .collect();
    job.file("init", INIT);
    job.file("job/root", ROOT);
    job.file("job/settings", settings.as_bytes());
    job.file("job/script", script);
    [image.base.as_slice(), &job.finish()].concat()
}

/// Quotes a word for the shell.
pub(crate) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::exec;

    #[test]
    fn quoted_words_come_back_as_they_were() {
        for word in ["plain", "two words", "it's", "$HOME `id` \\", ""] {
            let shell = exec::text(
                Command::new("sh")
                    .arg("-c")
                    .arg(format!("printf %s {}", quote(word))),
            );
            assert_eq!(shell.unwrap(), word);
        }
    }
}
