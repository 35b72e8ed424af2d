//! One problem of a configuration: its fault, its line and its fix.

/// The part that is wrong. The module `cli::exit_code` has the exit code of
/// each fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The text of the configuration file, or a flag of the command line.
    Invalid,
    /// A file is missing or unreadable.
    MissingFile,
    /// A file that the configuration names has invalid contents.
    InvalidFile,
    /// A certificate or a CA in a file is invalid.
    Tls,
    /// The host does not fit the profile, a limit or the fast tier.
    Host,
}

/// A problem of the configuration, with its fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Line in the configuration file, counted from 1; `None` if the problem has no line.
    pub(crate) line: Option<usize>,
    /// The flag with the invalid value, if the command line overrides the key.
    pub(crate) flag: Option<&'static str>,
    pub(crate) message: String,
}

impl Problem {
    pub(super) fn new(line: Option<usize>, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            line,
            flag: None,
            message,
        }
    }
}
