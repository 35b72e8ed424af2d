//! The choice of the CPUs that this process runs on, and the binding of threads to these CPUs.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::Machine;

/// A choice of CPUs, which the key `limits.cores` configures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CpuSelection {
    /// All CPUs on which the system lets the process run.
    All,
    /// The last N of the CPUs on which the process may run. The last CPUs are used, because
    /// interrupts and manually bound tasks are usually on the first CPUs.
    Last(usize),
    /// The CPUs with these numbers, in ascending order.
    These(Vec<usize>),
}

impl CpuSelection {
    /// Resolves the selection to CPU numbers in ascending order. `None` means that no binding is
    /// needed.
    ///
    /// # Errors
    /// A message for the operator if the process may not run on a selected CPU.
    pub fn resolve(&self, machine: &Machine) -> Result<Option<Vec<usize>>, String> {
        let allowed = &machine.cores;
        match self {
            Self::All => Ok(None),
            Self::Last(count) if *count >= allowed.len() => Ok(None),
            Self::Last(count) => Ok(Some(allowed[allowed.len() - count..].to_vec())),
            Self::These(cores) => match cores
                .iter()
                .find(|it| !allowed.is_empty() && !allowed.contains(it))
            {
                None => Ok(Some(cores.clone())),
                Some(missing) => Err(format!(
                    "limits.cores = \"{self}\": this process may run on {allowed} and not on {missing}: write \"all\", or numbers of \
                     {allowed}",
                    allowed = format_cpu_list(allowed)
                )),
            },
        }
    }
}

/// Binds the calling thread, and all threads that it starts later, to these CPUs.
///
/// # Errors
/// The error of the system, if the binding fails.
pub fn bind_to_cores(cores: &[usize]) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    for core in cores.iter().filter(|core| **core < CpuSet::MAX_CPU) {
        set.set(*core);
    }
    Ok(sched_setaffinity(None, &set)?)
}

impl FromStr for CpuSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} names no cores: write \"all\", \"last 4\", or their numbers (0 to {}) such as \"4-7\" or \"2,3\"",
                CpuSet::MAX_CPU - 1
            )
        };
        if text == "all" {
            return Ok(Self::All);
        }
        if let Some(count) = text.strip_prefix("last ") {
            return match count.trim().parse() {
                Ok(count @ 1..=CpuSet::MAX_CPU) => Ok(Self::Last(count)),
                _ => Err(wrong()),
            };
        }
        parse_cpu_list(text).map(Self::These).map_err(|()| wrong())
    }
}

impl fmt::Display for CpuSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Last(count) => write!(f, "last {count}"),
            Self::These(cores) => f.write_str(&format_cpu_list(cores)),
        }
    }
}

/// Parses a CPU list such as `0-3,6`, in the format of the kernel. Returns the numbers in ascending
/// order, each number once.
pub(crate) fn parse_cpu_list(text: &str) -> Result<Vec<usize>, ()> {
    let mut cores = BTreeSet::new();
    for run in text.split(',') {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| ());
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last >= CpuSet::MAX_CPU {
            return Err(());
        }
        cores.extend(first..=last);
    }
    Ok(cores.into_iter().collect())
}

/// Formats CPU numbers as a list such as `0-3,6`.
pub fn format_cpu_list(cores: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &core in cores {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => runs.push((core, core)),
        }
    }
    let one = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_of_the_configuration_are_parsed_and_formatted() {
        for (text, cores) in [
            ("all", CpuSelection::All),
            ("last 4", CpuSelection::Last(4)),
            ("4-7", CpuSelection::These(vec![4, 5, 6, 7])),
            ("0,2-3,9", CpuSelection::These(vec![0, 2, 3, 9])),
        ] {
            assert_eq!(text.parse(), Ok(cores.clone()));
            assert_eq!(cores.to_string(), text);
        }
        assert_eq!("3,1,2,1".parse(), Ok(CpuSelection::These(vec![1, 2, 3])));
        for wrong in [
            "", "last", "last 0", "none", "3-1", "1-99999", "1,,2", "-1", "last -1",
        ] {
            let error = wrong.parse::<CpuSelection>().unwrap_err();
            assert!(error.contains("their numbers (0 to 1023)"), "{error}");
        }
    }

    #[test]
    fn the_last_cores_are_chosen_among_the_allowed_cores() {
        let machine = Machine {
            cores: vec![0, 1, 6, 7],
            ..Machine::default()
        };
        let of = |text: &str| text.parse::<CpuSelection>().unwrap().resolve(&machine);
        assert_eq!(of("all"), Ok(None));
        assert_eq!(of("last 2"), Ok(Some(vec![6, 7])));
        assert_eq!(of("last 4"), Ok(None));
        assert_eq!(of("last 9"), Ok(None));
        assert_eq!(of("1,6"), Ok(Some(vec![1, 6])));
        let unknown = Machine::default();
        assert_eq!(
            CpuSelection::These(vec![9]).resolve(&unknown),
            Ok(Some(vec![9]))
        );
        let output = of("1-2").unwrap_err();
        let fix = "may run on 0-1,6-7 and not on 2: write \"all\", or numbers of 0-1,6-7";
        assert!(output.contains(fix), "{output}");
    }

    #[test]
    fn a_bound_thread_and_its_children_run_on_the_given_cores() {
        let ours = || rustix::thread::sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU)
            .find(|core| ours().is_set(*core))
            .unwrap();
        let inside = std::thread::spawn(move || {
            bind_to_cores(&[first]).unwrap();
            let after =
                std::thread::spawn(move || rustix::thread::sched_getaffinity(None).unwrap());
            after.join().unwrap()
        });
        let set = inside.join().unwrap();
        assert!(set.is_set(first) && set.count() == 1);
    }
}
