//! The type `Problem`: one problem of a configuration, with its line and its fix.

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
