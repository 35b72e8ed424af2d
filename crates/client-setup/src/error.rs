//! What can go wrong with the files of a client, and whose fault it is.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::client::Client;

/// Who has to act before the same call can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The caller: the options ask for what this client cannot do.
    Caller,
    /// The owner of the client's files: one of them has to be changed by hand first.
    ClientFiles,
    /// The caller lacks a permission of the file system.
    Permission,
    /// The machine: its disk, its daemons or its service manager.
    Machine,
}

/// What became of the files when [`Error::Edited`] is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No file was changed.
    Untouched,
    /// No file was changed, because this was a dry run.
    WouldStay,
    /// The edited files were left, and the other ones restored.
    OthersRestored,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Untouched => "Nothing was touched.",
            Self::WouldStay => "It would be left as it is.",
            Self::OthersRestored => "It was left as it is, and the other files are as they were.",
        })
    }
}

/// An error of this crate. Each one shows its own level only; [`std::error::Error::source`] holds
/// the rest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// A verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A path to write is a symbolic link without a target.
    #[error("{} is a link to nothing: remove it or make its target", path.display())]
    DanglingLink {
        /// The link.
        path: PathBuf,
    },
    /// A path to write is a link that leaves the folder that stands for `/`.
    #[error("cannot write {}: it is a link that leads out of the folder that stands for /", path.display())]
    LinkOutsideRoot {
        /// The link.
        path: PathBuf,
    },
    /// Not a regular file, or larger than any configuration.
    #[error("{} is no configuration file", path.display())]
    NotAConfigFile {
        /// The file.
        path: PathBuf,
    },
    /// Not UTF-8.
    #[error("{} is not UTF-8 text", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
    },
    /// A file without a certificate in PEM form.
    #[error(
        "no certificate in {}: a PEM file with BEGIN CERTIFICATE is expected",
        path.display()
    )]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A file that its own reader would refuse, or that cannot be changed safely.
    #[error("{}{}: {}", path.display(), at_line(problem.line), problem.message)]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with its text.
        problem: TextProblem,
    },
    /// docker has mirrors for Docker Hub alone.
    #[error("docker has mirrors for docker.io alone: pull {authority}/{registry}/… instead")]
    NoMirrorForRegistry {
        /// The registry that was asked for.
        registry: String,
        /// `host:port` of pierhead.
        authority: String,
    },
    /// dockerd gets a flag that excludes the key of `daemon.json`.
    #[error(
        "dockerd gets {flag} from {flag_source}, and does not start when {} has {key} as well: take \
         the flag away and put its value into {key}",
        path.display()
    )]
    FlagConflict {
        /// The flag of dockerd.
        flag: &'static str,
        /// Where dockerd gets it from.
        flag_source: String,
        /// The `daemon.json`.
        path: PathBuf,
        /// Its key.
        key: &'static str,
    },
    /// A drop-in with the name of ours, which no record mentions.
    #[error(
        "{} is not as pierhead wrote it, and there is no record of it: move it away first",
        path.display()
    )]
    UnknownDropIn {
        /// The drop-in.
        path: PathBuf,
    },
    /// Files that somebody changed in the same lines as pierhead.
    #[error("{}", edited_message(files, *outcome, record))]
    Edited {
        /// Each file with the diff from what pierhead wrote to what it holds now.
        files: Vec<(PathBuf, String)>,
        /// What became of the files.
        outcome: Outcome,
        /// Where the contents from before pierhead are.
        record: PathBuf,
    },
    /// The record cannot be understood.
    #[error("{} is no record of pierhead setup", path.display())]
    InvalidRecord {
        /// The record.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The record is of another version of its format.
    #[error("{} is of another version of pierhead: use that one", path.display())]
    RecordVersion {
        /// The record.
        path: PathBuf,
    },
    /// A file could not be written, and all files before it were restored.
    #[error("nothing was changed")]
    NotApplied {
        /// Why.
        source: Box<Error>,
    },
    /// A file could not be written, and not all files before it could be restored.
    #[error("some files were changed, and could not be restored ({})", failures.join("; "))]
    NotRestored {
        /// Each restoration that failed.
        failures: Vec<String>,
        /// Why the files were to be restored.
        source: Box<Error>,
    },
    /// Another process holds this setup, or the socket cannot be made.
    #[error("cannot hold the setup of {client}")]
    Hold {
        /// Whose setup.
        client: Client,
        /// What the system says.
        source: io::Error,
    },
    /// The files are written, but the client was not told.
    #[error("the files are written, but {reason}")]
    NotReloaded {
        /// With the fix.
        reason: String,
        /// What the system says, where it said something.
        source: Option<io::Error>,
    },
}

impl Error {
    /// Who has to act.
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

/// What is wrong with the text of a file. The caller adds the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextProblem {
    /// From 1; `None` when no single line is wrong.
    pub line: Option<usize>,
    /// What is wrong, with its fix.
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
            "{} was changed since pierhead wrote it, in the same lines:\n{diff}",
            path.display()
        ));
    }
    format!(
        "{message}{outcome} Take what is pierhead's out of it by hand and run this again; what it held before is \
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
    fn the_fault_is_that_of_the_cause() {
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
        assert_eq!(error.to_string(), "nothing was changed");
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
    fn edited_files_are_shown_with_the_way_out() {
        let error = Error::Edited {
            files: vec![("/etc/a".into(), "-1\n+2\n".to_owned())],
            outcome: Outcome::OthersRestored,
            record: "/var/r.json".into(),
        };
        let text = error.to_string();
        assert!(text.starts_with("/etc/a was changed"), "{text}");
        assert!(text.contains("-1\n+2\nIt was left"), "{text}");
        assert!(text.ends_with("before is in /var/r.json"), "{text}");
    }
}
