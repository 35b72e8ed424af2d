//! The type of one problem of a configuration.

/// A problem of the configuration, with its fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Line of the file, from 1; `None` if the problem has no line.
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
