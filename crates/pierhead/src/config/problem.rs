//! What is wrong with a configuration.

/// A problem of the configuration, with its fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// From 1; `None` when it is about no line of the file.
    pub(crate) line: Option<usize>,
    /// Of the command line, which said it over the file.
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
