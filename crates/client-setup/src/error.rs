//! The error type of `pierhead setup`: what failed, and who has to act.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::client::Client;

/// Who has to act before the same operation can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The caller has to change the options, because the client does not support them.
    Caller,
    /// The owner of the client's files has to change one of them by hand.
    ClientFiles,
    /// The caller needs a permission in the file system.
    Permission,
    /// The operator of the machine has to act, because the disk, a daemon or the service manager is
    /// at fault.
    Machine,
}

/// The state of the files after the error [`Error::Edited`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No file was changed.
    Untouched,
    /// No file was changed, because the run was a dry run.
    WouldStay,
    /// The edited files are unchanged, and the other files are restored.
    OthersRestored,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Untouched => "No file was changed.",
            Self::WouldStay => "An undo would leave it unchanged.",
            Self::OthersRestored => "It is unchanged, and the other files are restored.",
        })
    }
}

/// An error of the crate `pierhead-client-setup`. `Display` prints only the error itself;
/// [`std::error::Error::source`] returns the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation of the file system failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The failed operation, as a verb.
        action: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The path of a file to write is a symbolic link without a target.
    #[error("{} is a symbolic link without a target: remove the link or create its target", path.display())]
    DanglingLink {
        /// The path of the symbolic link.
        path: PathBuf,
    },
    /// The path of a file to write is a symbolic link that leads out of the root folder.
    #[error("cannot write {}: it is a symbolic link that leads out of the root folder", path.display())]
    LinkOutsideRoot {
        /// The path of the symbolic link.
        path: PathBuf,
    },
    /// A path is not a regular file, or the file exceeds the maximum size.
    #[error("{} is no configuration file", path.display())]
    NotAConfigFile {
        /// The path of the file.
        path: PathBuf,
    },
    /// A file is not UTF-8 text.
    #[error("{} is not UTF-8 text", path.display())]
    NotUtf8 {
        /// The path of the file.
        path: PathBuf,
    },
    /// A file contains no certificate in PEM form.
    #[error(
        "no certificate in {}: name a PEM file with BEGIN CERTIFICATE",
        path.display()
    )]
    NoCertificate {
        /// The path of the file.
        path: PathBuf,
    },
    /// The client would refuse the file, or the file cannot be changed safely.
    #[error("{}{}: {}", path.display(), at_line(problem.line), problem.message)]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error in the text of the file.
        problem: TextProblem,
    },
    /// docker supports mirrors for Docker Hub only.
    #[error("docker supports mirrors for docker.io only: pull {authority}/{registry}/… instead")]
    NoMirrorForRegistry {
        /// The name of the requested registry.
        registry: String,
        /// The address of pierhead, as `host:port`.
        authority: String,
    },
    /// dockerd has a command line flag that excludes a key in `daemon.json`: dockerd does not
    /// accept both.
    #[error(
        "dockerd has {flag} from {flag_source}, and does not start if {} has {key}, too: remove \
         the flag, and write its value into {key}",
        path.display()
    )]
    FlagConflict {
        /// The name of the flag of dockerd.
        flag: &'static str,
        /// The place where the flag is set.
        flag_source: String,
        /// The path of `daemon.json`.
        path: PathBuf,
        /// The key of `daemon.json` that has the same meaning as the flag.
        key: &'static str,
    },
    /// A file has the name of pierhead's drop-in file, but the record of the setup does not mention
    /// this file.
    #[error(
        "{} was not written by this pierhead, and no record mentions it: move it away first",
        path.display()
    )]
    UnknownDropIn {
        /// The path of the drop-in file.
        path: PathBuf,
    },
    /// A user has edited the lines that pierhead wrote into these files.
    #[error("{}", edited_message(files, *outcome, record))]
    Edited {
        /// Each file, with the diff from the text that pierhead wrote to the present text.
        files: Vec<(PathBuf, String)>,
        /// Which files were changed or restored before the error.
        outcome: Outcome,
        /// The path of the record with the original texts.
        record: PathBuf,
    },
    /// The record of the setup cannot be parsed.
    #[error("{} is no record of pierhead setup", path.display())]
    InvalidRecord {
        /// The path of the record.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// The record of the setup has another version of its format.
    #[error("another version of pierhead wrote {}: run that version", path.display())]
    RecordVersion {
        /// The path of the record.
        path: PathBuf,
    },
    /// A file could not be written, and all files that were already changed were restored.
    #[error("no file was changed")]
    NotApplied {
        /// The reason why the file could not be written.
        source: Box<Error>,
    },
    /// A file could not be written, and some files that were already changed could not be restored.
    #[error("some files were changed, and could not be restored ({})", failures.join("; "))]
    NotRestored {
        /// The restorations that failed, each as text.
        failures: Vec<String>,
        /// The error that made the restoration necessary.
        source: Box<Error>,
    },
    /// Another `pierhead setup --hold` process holds the setup of this client, or the socket that
    /// marks this could not be created.
    #[error("cannot hold the setup of {client}")]
    Hold {
        /// The client whose setup cannot be held.
        client: Client,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The files are written, but the client could not be reloaded so that it reads these files.
    #[error("the files are written, but {reason}")]
    NotReloaded {
        /// The reason, and what the user can do.
        reason: String,
        /// The error of the operating system, if there is one.
        source: Option<io::Error>,
    },
}

impl Error {
    /// Returns who has to act after this error.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Fault::Permission
            }
            Self::NotApplied { source } | Self::NotRestored { source, .. } => source.fault(),
            Self::NoMirrorForRegistry { .. } | Self::NoCertificate { .. } => Fault::Caller,
            Self::DanglingLink { .. }
            | Self::LinkOutsideRoot { .. }
            | Self::NotAConfigFile { .. }
            | Self::NotUtf8 { .. }
            | Self::File { .. }
            | Self::FlagConflict { .. }
            | Self::UnknownDropIn { .. }
            | Self::Edited { .. } => Fault::ClientFiles,
            Self::Io { .. }
            | Self::InvalidRecord { .. }
            | Self::RecordVersion { .. }
            | Self::Hold { .. }
            | Self::NotReloaded { .. } => Fault::Machine,
        }
    }
}

/// An error in the text of a file. The caller adds the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextProblem {
    /// The line number, counted from 1. `None` if the error is not in a single line.
    pub line: Option<usize>,
    /// The description of the error, and its fix.
    pub message: String,
}

impl TextProblem {
    pub(crate) fn in_file(self, path: PathBuf) -> Error {
        Error::File {
            path,
            problem: self,
        }
    }
}

/// Adds the action and the path to an error of the file system.
pub(crate) trait IoContext<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, Error>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::Io {
            action,
            path: path.to_owned(),
            source,
        })
    }
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(":{line}")).unwrap_or_default()
}

fn edited_message(files: &[(PathBuf, String)], outcome: Outcome, record: &Path) -> String {
    let mut message = String::new();
    for (path, diff) in files {
        message.push_str(&format!(
            "{} was edited at or next to the lines of pierhead:\n{diff}",
            path.display()
        ));
    }
    format!(
        "{message}{outcome} Remove the lines of pierhead by hand, and run the command again; the original text is \
         in {}",
        record.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io(kind: io::ErrorKind) -> Error {
        let path = Path::new("/etc/x");
        let failed: io::Result<()> = Err(kind.into());
        failed.context("write", path).expect_err("it failed")
    }

    fn problem(line: Option<usize>) -> TextProblem {
        let message = "bad".to_owned();
        TextProblem { line, message }
    }

    #[test]
    fn the_fault_of_an_error_is_the_fault_of_its_cause() {
        assert_eq!(io(io::ErrorKind::StorageFull).fault(), Fault::Machine);
        let denied = || Box::new(io(io::ErrorKind::PermissionDenied));
        assert_eq!(denied().fault(), Fault::Permission);
        let applied = Error::NotApplied { source: denied() };
        assert_eq!(applied.fault(), Fault::Permission);
        let restored = Error::NotRestored {
            failures: Vec::new(),
            source: denied(),
        };
        assert_eq!(restored.fault(), Fault::Permission);
        let error = problem(None).in_file("/a".into());
        assert_eq!(error.fault(), Fault::ClientFiles);
    }

    #[test]
    fn each_error_shows_its_own_level_and_keeps_its_source() {
        use std::error::Error as _;
        let error = Error::NotApplied {
            source: Box::new(io(io::ErrorKind::StorageFull)),
        };
        assert_eq!(error.to_string(), "no file was changed");
        let cause = error.source().expect("a cause");
        assert_eq!(cause.to_string(), "cannot write /etc/x");
        assert!(cause.source().is_some());
        let lines = [(Some(3), "/a:3: bad"), (None, "/a: bad")];
        for (line, expected) in lines {
            let error = problem(line).in_file("/a".into());
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn the_error_of_edited_files_shows_the_diff_and_the_fix() {
        let error = Error::Edited {
            files: vec![("/etc/a".into(), "-1\n+2\n".to_owned())],
            outcome: Outcome::OthersRestored,
            record: "/var/r.json".into(),
        };
        let text = error.to_string();
        assert!(
            text.starts_with("/etc/a was edited at or next to the lines of pierhead"),
            "{text}"
        );
        assert!(text.contains("-1\n+2\nIt is unchanged"), "{text}");
        assert!(text.ends_with("original text is in /var/r.json"), "{text}");
    }
}
