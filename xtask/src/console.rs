//! Output of steps that run in parallel: each thread prints to the terminal, or to its own file.
//!
//! 1. While a thread gathers its output, all its output is in its file, in order. The output of
//!    child processes with [`stdio`] is in the same file.
//! 2. A thread that the first thread starts prints to the same file after it has called
//!    [`Console::enter`] on the [`Console::current`] of the first thread.

use std::{
    cell::RefCell,
    fmt,
    fs::{self, File},
    io::{ErrorKind, Write as _},
    path::Path,
    process::Stdio,
    sync::Arc,
};

use anyhow::Result;

thread_local! {
    static GATHERED: RefCell<Option<Arc<File>>> = const { RefCell::new(None) };
}

/// Prints a line to the console of the current thread.
macro_rules! say {
    ($($text:tt)*) => { $crate::console::line(format_args!($($text)*)) };
}
pub(crate) use say;

/// Prints a line, as [`say!`] does.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    GATHERED.with_borrow(|file| match file {
        // One write call, so that no child process writes into the middle of the line. On a full
        // disk, the step ends by another error.
        Some(file) => drop((&**file).write_all(format!("{text}\n").as_bytes())),
        None => println!("{text}"),
    });
}

/// An output for a child process: the console of the current thread.
///
/// # Errors
/// The process has too many open files.
pub(crate) fn stdio() -> Result<Stdio> {
    GATHERED.with_borrow(|file| match file {
        Some(file) => Ok(file.try_clone()?.into()),
        None => Ok(Stdio::inherit()),
    })
}

/// The output of a thread: the terminal, or a file.
#[derive(Clone, Default)]
pub(crate) struct Console(Option<Arc<File>>);

impl Console {
    /// The console of the current thread.
    pub(crate) fn current() -> Self {
        Self(GATHERED.with_borrow(Clone::clone))
    }

    /// Runs `what` so that the current thread prints to this console.
    pub(crate) fn enter<T>(&self, what: impl FnOnce() -> T) -> T {
        let before = GATHERED.replace(self.0.clone());
        let result = what();
        GATHERED.set(before);
        result
    }
}

/// Runs `what`, and also returns its output. During and after the run, the file at `log` has the
/// output.
///
/// # Errors
/// The file cannot be created or read. If it cannot be created, `what` did not run.
pub(crate) fn gather<T>(log: &Path, what: impl FnOnce() -> T) -> Result<(T, Vec<u8>)> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder)?;
    }
    // Remove the file of an earlier run: child processes of that run may still write to it.
    match fs::remove_file(log) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let appended = File::options().append(true).create_new(true).open(log)?;
    let console = Console(Some(Arc::new(appended)));
    let result = console.enter(what);
    Ok((result, fs::read(log)?))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn threads_and_children_print_where_their_step_prints() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("logs/step.log");
        let (result, text) = gather(&log, || {
            say!("one {}", 1);
            let console = Console::current();
            let thread = std::thread::spawn(move || console.enter(|| say!("two")));
            thread.join().expect("no panic");
            let mut echo = Command::new("echo");
            let status = echo.arg("three").stdout(stdio().unwrap()).status().unwrap();
            let text = fs::read_to_string(&log).unwrap();
            assert_eq!(
                text, "one 1\ntwo\nthree\n",
                "the file grows with the output"
            );
            say!("four");
            status.success()
        })
        .unwrap();
        assert!(result);
        assert_eq!(String::from_utf8_lossy(&text), "one 1\ntwo\nthree\nfour\n");
        let (_, after) = gather(&log, || ()).unwrap();
        assert!(after.is_empty(), "the output of an earlier run is gone");
    }
}
