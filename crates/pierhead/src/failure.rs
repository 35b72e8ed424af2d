//! How a command ends badly: what people read, and the exit code that scripts read.

use std::io;
use std::process::ExitCode;

/// Exit codes: 1 for what failed, 2 for what was asked for wrongly (usage and configuration).
#[derive(Debug)]
pub(crate) enum Failure {
    /// 1: it did not work.
    Failed(anyhow::Error),
    /// 2: it cannot work as told; each line has its mend.
    Refused(String),
    /// 1: the command did what it was asked, and what it found is bad and already said.
    Found,
    /// Another code, whose meaning the command's help tells; all was said.
    Exit(u8),
}

impl Failure {
    /// Says it on standard error.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            // `pierhead cache ls | head`: whoever read has read enough.
            Self::Failed(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
            Self::Failed(error) => {
                eprintln!("pierhead: {error:#}");
                ExitCode::from(1)
            }
            Self::Found => ExitCode::from(1),
            Self::Exit(code) => ExitCode::from(code),
            Self::Refused(message) => {
                eprintln!("{message}");
                ExitCode::from(2)
            }
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<crate::config::Refused> for Failure {
    fn from(refused: crate::config::Refused) -> Self {
        Self::Refused(refused.to_string())
    }
}
