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
                eprintln!("pierhead: {}", told(&error));
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

/// With its causes, but for those whose text stands in it already.
fn told(error: &anyhow::Error) -> String {
    let mut told = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !told.contains(&cause) {
            told = format!("{told}: {cause}");
        }
    }
    told
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot connect: {source}")]
        struct Cut {
            source: io::Error,
        }
        let source = io::Error::other("refused");
        let cut = anyhow::Error::new(Cut { source });
        assert_eq!(told(&cut), "cannot connect: refused");
        let wrapped = cut.context("no image");
        assert_eq!(told(&wrapped), "no image: cannot connect: refused");
    }
}
