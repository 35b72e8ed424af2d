//! How a command ends badly: what people read, and the exit code that scripts read.

use std::fmt;
use std::io;
use std::process::ExitCode;

use pierhead_remote::CertificateFault;
use pierhead_worker as worker;

use crate::terminal::escaped_lines;

/// Each code once: the enum, and the list of all.
macro_rules! exits {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal,)*) => {
        /// What is wrong, as scripts, systemd and Kubernetes read it (docs/how-to/operate.md). From 65 on the numbers are those of
        /// BSD's sysexits(3), as near in meaning as they come.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Exit {
            $($(#[doc = $doc])* $name = $code,)*
        }

        impl Exit {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name),*];

            /// Each code with its meaning, for the reference page.
            #[cfg(test)]
            pub(crate) const TABLE: &[(u8, &str)] = &[$(($code, concat!($($doc),*))),*];
        }
    };
}

exits! {
    /// It did not work, for none of the reasons below.
    Failed = 1,
    /// The command line or the configuration is wrong (clap's code, too).
    Refused = 2,
    /// `EX_DATAERR`: a file that the configuration names is not what it should be.
    WrongFile = 65,
    /// `EX_NOINPUT`: the configuration, or a file that it names, cannot be read; there is no such image.
    NoFile = 66,
    /// `EX_NOHOST`: there is no such interface, it has no address, or no interface has the one that was named.
    NoInterface = 68,
    /// `EX_UNAVAILABLE`: an address or the data folder belongs to another process.
    Taken = 69,
    /// `EX_OSERR`: the machine is not the one that was described.
    Machine = 71,
    /// `EX_OSFILE`: the data folder is somebody else's, or of another version.
    Foreign = 72,
    /// `EX_CANTCREAT`: the data folder cannot be written.
    ReadOnly = 73,
    /// `EX_IOERR`: the disk of the data folder is full.
    Full = 74,
    /// `EX_TEMPFAIL`: the clock is wrong.
    Clock = 75,
    /// `EX_PROTOCOL`: no TLS with an upstream, for the authorities or the certificate.
    Tls = 76,
    /// `EX_NOPERM`: the data folder belongs to another user, or a port may not be had.
    Denied = 77,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A reason with its code, anywhere among the causes of an [`anyhow::Error`]: what is wrong, where, and the mend.
#[derive(Debug)]
pub(crate) struct Told {
    exit: Exit,
    message: String,
    source: Option<io::Error>,
}

impl Told {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            source: None,
        }
    }

    /// What the system says is told behind the message.
    pub(crate) fn because(exit: Exit, message: impl Into<String>, source: io::Error) -> Self {
        Self {
            source: Some(source),
            ..Self::new(exit, message)
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Told {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|it| it as _)
    }
}

/// Of the first cause that has one.
fn exit_of(error: &anyhow::Error) -> Exit {
    let told = |cause: &(dyn std::error::Error + 'static)| {
        let told = cause.downcast_ref::<Told>().map(|told| told.exit);
        told.or_else(|| match cause.downcast_ref() {
            Some(worker::Error::Untrusted { whose, .. }) => Some((*whose).into()),
            Some(worker::Error::NotFound { .. } | worker::Error::NotStored { .. }) => {
                Some(Exit::NoFile)
            }
            _ => None,
        })
    };
    error.chain().find_map(told).unwrap_or(Exit::Failed)
}

impl From<CertificateFault> for Exit {
    fn from(whose: CertificateFault) -> Self {
        match whose {
            CertificateFault::Clock => Self::Clock,
            CertificateFault::Issuer
            | CertificateFault::Authority
            | CertificateFault::Certificate => Self::Tls,
        }
    }
}

/// How a command ends that does not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It did not work, for a reason that may be [`Told`].
    Failed(anyhow::Error),
    /// 2: it cannot work as told; each line has its mend.
    Refused(String),
    /// The same with a code of its own.
    Unfit(Exit, String),
    /// The command did what it was asked, and what it found is bad and already said.
    Found(Exit),
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
                eprintln!("pierhead: {}", escaped_lines(&told(&error)));
                exit_of(&error).into()
            }
            Self::Found(exit) => exit.into(),
            Self::Exit(code) => ExitCode::from(code),
            Self::Refused(message) => Self::Unfit(Exit::Refused, message).report(),
            Self::Unfit(exit, message) => {
                eprintln!("{message}");
                exit.into()
            }
        }
    }
}

/// With its causes, but for those whose text stands in it already.
pub(crate) fn told(error: &anyhow::Error) -> String {
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

impl From<worker::Error> for Failure {
    fn from(error: worker::Error) -> Self {
        match error {
            worker::Error::Usage(message) => Self::Refused(message),
            error => Self::Failed(error.into()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<crate::config::Refused> for Failure {
    fn from(refused: crate::config::Refused) -> Self {
        Self::Unfit(refused.exit(), refused.to_string())
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

    #[test]
    fn help_and_page_name_every_code() {
        use clap::CommandFactory as _;
        let help = crate::cli::Cli::command().render_help().to_string();
        let page = include_str!("../../../docs/how-to/operate.md");
        // As the help lays them out: "CODE meaning", at a line's begin or behind two spaces.
        let codes = help
            .lines()
            .skip_while(|line| !line.starts_with("Exit codes:"));
        let codes: String = codes.flat_map(|line| ["  ", line, "\n"]).collect();
        for exit in Exit::ALL {
            let code = *exit as u8;
            assert!(page.contains(&format!("\n| {code} |")), "{exit:?}");
            let named = format!("  {code} ");
            let in_first = format!(", {code} ");
            assert!(
                codes.contains(&named) || codes.contains(&in_first),
                "{exit:?}: {codes}"
            );
        }
    }

    #[test]
    fn the_code_is_found_below_what_was_being_done() {
        let source = io::Error::other("taken");
        let error = anyhow::Error::new(Told::because(Exit::Taken, "no port", source));
        let error = error.context("cannot start");
        assert_eq!(exit_of(&error), Exit::Taken);
        assert_eq!(told(&error), "cannot start: no port: taken");
        assert_eq!(exit_of(&anyhow::anyhow!("else")), Exit::Failed);
    }
}
