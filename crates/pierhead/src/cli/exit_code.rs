//! The exit codes of pierhead, and the errors that select a code and a message.

use std::fmt;
use std::io;
use std::process::ExitCode;

use pierhead_remote::CertificateFault;
use pierhead_worker as worker;

use super::terminal::escaped_lines;
use crate::config::files::FileError;
use crate::config::{Fault, InvalidConfig};

/// Defines the enum, the list of all codes, and the table of the reference page from one list.
macro_rules! exits {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal,)*) => {
        /// The reasons of a failed command, as exit codes for scripts, systemd and Kubernetes
        /// (docs/how-to/troubleshoot.md). From 65, each code is the closest code of BSD's
        /// sysexits(3).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum ExitReason {
            $($(#[doc = $doc])* $name = $code,)*
        }

        impl ExitReason {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name),*];

            /// Each code with its meaning, for the reference page.
            #[cfg(test)]
            pub(crate) const TABLE: &[(u8, &str)] = &[$(($code, concat!($($doc),*))),*];
        }
    };
}

exits! {
    /// The command failed for a reason without a code of its own.
    Failed = 1,
    /// The command line or the configuration is invalid: the user or the operator must correct it.
    Usage = 2,
    /// `EX_DATAERR`: a file that the configuration names has invalid contents.
    InvalidFile = 65,
    /// `EX_NOINPUT`: an image does not exist, or pierhead cannot read the configuration file or a
    /// file that it names.
    MissingFile = 66,
    /// `EX_NOHOST`: the network interface does not exist or has no address, or no interface has the
    /// listen address.
    NoInterface = 68,
    /// `EX_UNAVAILABLE`: another process uses the listen address or the data folder.
    InUse = 69,
    /// `EX_OSERR`: the profile, a limit or the fast tier does not fit the host.
    Machine = 71,
    /// `EX_OSFILE`: the data folder belongs to another program or to another version.
    ForeignData = 72,
    /// `EX_CANTCREAT`: the data folder is read-only or cannot be created.
    CannotWrite = 73,
    /// `EX_IOERR`: the disk of the data folder is full.
    DiskFull = 74,
    /// `EX_TEMPFAIL`: the clock of the host is years off.
    Clock = 75,
    /// `EX_PROTOCOL`: TLS to an upstream fails because of a certificate or a CA.
    Tls = 76,
    /// `EX_NOPERM`: the data folder belongs to another user, or binding the port needs root.
    PermissionDenied = 77,
}

impl From<ExitReason> for ExitCode {
    fn from(exit: ExitReason) -> Self {
        Self::from(exit as u8)
    }
}

/// An error with an exit code, which can be anywhere in the chain of an [`anyhow::Error`]. Its
/// message has the problem and the fix.
#[derive(Debug)]
pub(crate) struct ExitError {
    reason: ExitReason,
    message: String,
    source: Option<io::Error>,
}

impl ExitError {
    pub(crate) fn new(reason: ExitReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            source: None,
        }
    }

    /// The error of a file that a command-line flag names.
    pub(crate) fn of_file(flag: &str, error: FileError) -> Self {
        let reason = error.fault().into();
        Self::new(reason, format!("{flag}: {}", String::from(error)))
    }

    /// Adds the error of the operating system after the message.
    pub(crate) fn with_source(
        reason: ExitReason,
        message: impl Into<String>,
        source: io::Error,
    ) -> Self {
        Self {
            source: Some(source),
            ..Self::new(reason, message)
        }
    }
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ExitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|it| it as _)
    }
}

/// Returns the exit code of the first error in the chain that has a code.
pub(crate) fn reason_of(error: &anyhow::Error) -> ExitReason {
    let reason = |cause: &(dyn std::error::Error + 'static)| {
        let own = cause.downcast_ref::<ExitError>().map(|error| error.reason);
        own.or_else(|| match cause.downcast_ref() {
            Some(worker::Error::Untrusted { whose, .. }) => Some((*whose).into()),
            Some(worker::Error::NotFound { .. } | worker::Error::NotStored { .. }) => {
                Some(ExitReason::MissingFile)
            }
            _ => None,
        })
    };
    error.chain().find_map(reason).unwrap_or(ExitReason::Failed)
}

impl From<Fault> for ExitReason {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Invalid => Self::Usage,
            Fault::MissingFile => Self::MissingFile,
            Fault::InvalidFile => Self::InvalidFile,
            Fault::Tls => Self::Tls,
            Fault::Host => Self::Machine,
        }
    }
}

impl From<CertificateFault> for ExitReason {
    fn from(whose: CertificateFault) -> Self {
        match whose {
            CertificateFault::Clock => Self::Clock,
            CertificateFault::Issuer
            | CertificateFault::Authority
            | CertificateFault::Certificate => Self::Tls,
        }
    }
}

/// The reason for an exit code of a command that is not 0.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// The command failed. If the chain of the error contains an [`ExitError`], its exit code is
    /// used.
    Failed(anyhow::Error),
    /// Exit code 2: invalid usage or configuration. Each line of the text has a problem and its
    /// fix.
    Usage(String),
    /// A message for the user, with its exit code.
    Message(ExitReason, String),
    /// The command has already printed the problem that it found.
    Reported(ExitReason),
    /// An exit code that the help of the command explains. The command has already printed
    /// everything.
    Code(u8),
}

impl CommandError {
    /// Prints the error on standard error, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            // The reader of standard output has closed the pipe, as in `pierhead cache ls | head`.
            Self::Failed(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
            Self::Failed(error) => {
                eprintln!("pierhead: {}", escaped_lines(&describe(&error)));
                reason_of(&error).into()
            }
            Self::Reported(exit) => exit.into(),
            Self::Code(code) => ExitCode::from(code),
            Self::Usage(message) => Self::Message(ExitReason::Usage, message).report(),
            Self::Message(exit, message) => {
                eprintln!("{message}");
                exit.into()
            }
        }
    }
}

/// Returns the message of an error with its causes. Omits causes that the message already contains.
pub(crate) fn describe(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether the reader of standard output has closed the pipe.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<InvalidConfig> for CommandError {
    fn from(invalid: InvalidConfig) -> Self {
        Self::Message(invalid.fault().into(), invalid.to_string())
    }
}

impl From<worker::Error> for CommandError {
    fn from(error: worker::Error) -> Self {
        match error {
            worker::Error::Usage(message) => Self::Usage(message),
            error => Self::Failed(error.into()),
        }
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_appears_once_in_the_message() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot connect: {source}")]
        struct ConnectError {
            source: io::Error,
        }
        let source = io::Error::other("refused");
        let error = anyhow::Error::new(ConnectError { source });
        assert_eq!(describe(&error), "cannot connect: refused");
        let wrapped = error.context("no image");
        assert_eq!(describe(&wrapped), "no image: cannot connect: refused");
    }

    #[test]
    fn the_help_and_the_page_have_every_code() {
        use clap::CommandFactory as _;
        let help = crate::cli::Cli::command().render_help().to_string();
        let page = include_str!("../../../../docs/how-to/troubleshoot.md");
        // The help prints "CODE meaning" at the start of a line or after two spaces.
        let codes = help
            .lines()
            .skip_while(|line| !line.starts_with("Exit codes:"));
        let codes: String = codes.flat_map(|line| ["  ", line, "\n"]).collect();
        for exit in ExitReason::ALL {
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
    fn each_error_of_a_worker_command_has_its_code() {
        let untrusted = |whose| worker::Error::Untrusted {
            whose,
            message: "x".to_owned(),
        };
        let text = || "x".to_owned();
        for (error, reason) in [
            (
                worker::Error::NotFound {
                    image: text(),
                    server: text(),
                },
                ExitReason::MissingFile,
            ),
            (
                worker::Error::NotStored {
                    image: text(),
                    platform: text(),
                },
                ExitReason::MissingFile,
            ),
            (untrusted(CertificateFault::Clock), ExitReason::Clock),
            (untrusted(CertificateFault::Issuer), ExitReason::Tls),
            (untrusted(CertificateFault::Authority), ExitReason::Tls),
            (untrusted(CertificateFault::Certificate), ExitReason::Tls),
            (worker::Error::Image(text()), ExitReason::Failed),
            (worker::Error::NoBundle(text()), ExitReason::Failed),
        ] {
            let shown = format!("{error:?}");
            let CommandError::Failed(error) = CommandError::from(error) else {
                panic!("{shown}");
            };
            assert_eq!(reason_of(&error), reason, "{shown}");
        }
        let usage = CommandError::from(worker::Error::Usage("x".to_owned()));
        assert!(matches!(usage, CommandError::Usage(_)), "{usage:?}");
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_other_io_errors_are() {
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&broken.into()));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(!is_broken_pipe(&full.into()));
        assert!(!is_broken_pipe(&anyhow::anyhow!("Broken pipe")));
    }

    #[test]
    fn the_error_of_a_file_names_its_flag_and_has_the_code_of_its_fault() {
        let missing = std::path::Path::new("/nonexistent/address");
        let error = crate::config::files::first_line(missing);
        let error = error.err().expect("no such file");
        let error = anyhow::Error::new(ExitError::of_file("--address-file", error));
        assert_eq!(reason_of(&error), ExitReason::MissingFile);
        let message = error.to_string();
        assert!(message.starts_with("--address-file: "), "{message}");
    }

    #[test]
    fn the_code_is_found_below_a_context() {
        let source = io::Error::other("in use");
        let error =
            anyhow::Error::new(ExitError::with_source(ExitReason::InUse, "no port", source));
        let error = error.context("cannot start");
        assert_eq!(reason_of(&error), ExitReason::InUse);
        assert_eq!(describe(&error), "cannot start: no port: in use");
        assert_eq!(reason_of(&anyhow::anyhow!("else")), ExitReason::Failed);
    }
}
