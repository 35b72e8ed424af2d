//! Tests of persistent memory: three boots with the same NVDIMM. The suite kills the machine during
//! the second boot.

use std::{path::Path, time::Instant};

use anyhow::{Result, bail};

use super::machine::Machine;
use crate::{
    check::{programs::Program, test_count::TestCount},
    console::say,
    guest::{BootResult, ConsoleOutput, quote},
    paths,
};

/// Names of the values that the example program writes: in the complete first boot, and in the
/// killed second boot.
const WHOLE: &str = "1";
const WHOLE_STEPS: u64 = 200;
const CUT: &str = "2";

/// Filters of tests that do not run in the guest. The tests of the log and of its fuzz target use
/// the simulated medium, never the NVDIMM, and take minutes under emulation.
const NOT_IN_GUEST: &[&str] = &["log::", "fuzzing::"];

/// Filters of tests that do not run without KVM. Emulated flush instructions access no memory, so a
/// flush of an unmapped page faults only on a real CPU.
const NOT_EMULATED: &[&str] = &[
    "a_flush_by_instructions_detects_a_truncated_file",
    "a_file_truncated_under_the_map_fails_the_region_permanently",
];

/// The daemon's test that runs in all three boots: its package, test program and name.
pub(super) const THREE_BOOT_TEST: (&str, &str, &str) = (
    "pierhead-tests",
    "e2e",
    "tier::power_loss::over_three_boots",
);

/// Folders of the daemon's test: the first folder has the region file of the tier, the second
/// folder the daemon's data.
const THREE_BOOT_FOLDERS: [&str; 2] = ["/mnt/pmem/staged", "/mnt/disk/staged"];

/// Lines that mark the beginning and end of a job in the output of the guest.
const BEGIN: &str = "pmem-vm: begin";
const END: &str = "pmem-vm: end ";

/// A command that runs in the guest.
struct Job {
    name: String,
    command: String,
    /// Whether the command is a test program, whose tests are counted. A command that is not a test
    /// program counts as one test.
    tests: bool,
}

impl Job {
    /// The daemon's test in boot number `boot`. `last` is the last output of the test in the second
    /// boot.
    fn three_boot_test(program: &Program, daemon: &Path, boot: u8, last: &str) -> Self {
        let word = |path: &Path| quote(&path.display().to_string());
        let (path, daemon) = (word(&program.path), word(daemon));
        let (folder, scratch) = (word(&program.folder), word(&paths::target().join("e2e")));
        let (test, [fast, disk]) = (THREE_BOOT_TEST.2, THREE_BOOT_FOLDERS);
        let anew = if boot == 1 {
            format!("rm -rf {fast} {disk} && mkdir {fast} {disk} && ")
        } else {
            String::new()
        };
        // Temporary files are in memory: in a folder of the host, they would remain after the kill.
        Self {
            name: format!("{} {test}, boot {boot}", program.name),
            command: format!(
                "{anew}mkdir -p {scratch} && mount -t tmpfs e2e {scratch} && cd {folder} && PIERHEAD_BIN={daemon} \
                 PIERHEAD_PMEM_DIR={fast} PIERHEAD_PMEM_DISK={disk} PIERHEAD_PMEM_BOOT={boot} \
                 PIERHEAD_PMEM_LAST={last} {path} --exact {test} --nocapture"
            ),
            tests: true,
        }
    }

    /// The example program `survivor` of `crates/pmem`.
    fn survivor(survivor: &Path, what: &str) -> Self {
        Self {
            name: format!("survivor {what}"),
            command: format!("{} {what}", quote(&survivor.display().to_string())),
            tests: false,
        }
    }

    fn program(program: &Program, kvm: bool) -> Self {
        let folder = quote(&program.folder.display().to_string());
        let emulated: &[&str] = if kvm { &[] } else { NOT_EMULATED };
        let skip: String = [NOT_IN_GUEST, emulated]
            .concat()
            .iter()
            .map(|name| format!(" --skip {name}"))
            .collect();
        // Temporary files of the tests are on persistent memory.
        Self {
            name: program.name.clone(),
            command: format!(
                "cd {folder} && CARGO_MANIFEST_DIR={folder} TMPDIR=/mnt/pmem {}{skip}",
                quote(&program.path.display().to_string()),
            ),
            tests: true,
        }
    }
}

/// Runs the suite: the test programs `programs`, and `survivor` in all three boots. Kills the
/// machine of the second boot after `cut` commits of `survivor`.
///
/// # Errors
/// A machine does not boot, or exceeds its time limit.
pub(super) fn run(
    machine: &Machine,
    programs: &[&Program],
    (survivor, daemon): (&Path, &Path),
    cut: u64,
) -> Result<TestCount> {
    let of_daemon = |it: &&&Program| it.package == THREE_BOOT_TEST.0;
    let Some(staged) = programs.iter().find(of_daemon) else {
        bail!("there is no test of the daemon");
    };
    let staged = |boot, last: &str| Job::three_boot_test(staged, daemon, boot, last);
    let survivor = |what: &str| Job::survivor(survivor, what);
    let whole = || survivor(&format!("check /mnt/pmem {WHOLE} {}", WHOLE_STEPS - 1));
    let mut sum = TestCount::default();

    let mut first = vec![
        survivor("class /mnt/pmem pmem"),
        survivor("class /mnt/disk emulated-file"),
        survivor("class /dev/shm volatile"),
    ];
    let others = programs.iter().filter(|it| !of_daemon(it));
    first.extend(others.map(|it| Job::program(it, machine.kvm)));
    first.push(staged(1, ""));
    first.push(survivor(&format!("write /mnt/pmem {WHOLE} {WHOLE_STEPS}")));
    sum += &to_the_end(machine, "first", &first)?;

    let mut write = survivor(&format!("write /mnt/pmem {CUT}"));
    // The daemon and `survivor` are running when the machine is killed. If the daemon's test ends
    // before its first pull, the third boot reports this error.
    let pulling = format!("{}/pulling", THREE_BOOT_FOLDERS[0]);
    write.command = format!(
        "({} || touch {pulling}) & until [ -e {pulling} ]; do sleep 0.1; done; {}",
        staged(2, "").command,
        write.command
    );
    let (count, last) = killed(machine, &[whole(), write], cut)?;
    sum += &count;
    let Some(Last { committed, pulled }) = last else {
        return Ok(sum);
    };
    say!("  killed after commit {committed}, pull {pulled:?}");

    let pulled = pulled.map_or_else(|| "none".to_owned(), |it| it.to_string());
    let third = [
        whole(),
        survivor(&format!("check /mnt/pmem {CUT} {committed}")),
        staged(3, &pulled),
    ];
    sum += &to_the_end(machine, "third", &third)?;
    Ok(sum)
}

/// Runs a boot that ends by itself.
fn to_the_end(machine: &Machine, name: &str, jobs: &[Job]) -> Result<TestCount> {
    let mut boot = machine.boot(name, Path::new("/"), &script(jobs))?;
    let mut tally = Tally::of(jobs);
    while let ConsoleOutput::Line(line) = boot.listen()? {
        tally.line(&line);
    }
    let BootResult { ready, took, .. } = boot.end()?;
    say!(
        "  {name} boot: ready after {ready} s of its clock, off after {:.1} s",
        took.as_secs_f64()
    );
    tally.close()
}

/// Runs a boot whose last job prints `committed N` repeatedly, and kills the machine. Returns the
/// last reported state, or `None` if the job failed before.
fn killed(machine: &Machine, jobs: &[Job], cut: u64) -> Result<(TestCount, Option<Last>)> {
    let started_at = Instant::now();
    let mut boot = machine.boot("second", Path::new("/"), &script(jobs))?;
    let mut tally = Tally::of(jobs);
    let mut commits = 0;
    let mut last = None;
    let mut pulled = None;
    let mut unplugged = false;
    // Lines that the guest printed before the kill are still in the pipe.
    while let ConsoleOutput::Line(line) = boot.listen()? {
        if let Some(number) = line.strip_prefix("pulled ") {
            pulled = Some(number.trim().parse()?);
            continue;
        }
        let Some(number) = line.strip_prefix("committed ") else {
            tally.line(&line);
            continue;
        };
        last = Some(number.trim().parse()?);
        commits += 1;
        if commits == cut {
            boot.kill()?;
            unplugged = true;
        }
    }
    if !unplugged {
        // The end of the boot has the reason: the job or the machine failed.
        boot.end()?;
        let count = tally.close()?;
        if count.failed == 0 {
            bail!("the writer ended by itself");
        }
        return Ok((count, None));
    }
    // The last job is killed on purpose, so it counts as passed.
    tally.end("0");
    say!(
        "  second boot: killed after {:.1} s",
        started_at.elapsed().as_secs_f64()
    );
    let last = last.map(|committed| Last { committed, pulled });
    Ok((tally.close()?, last))
}

/// The last reported state before the kill.
struct Last {
    /// Number of commits that `survivor` reported.
    committed: u64,
    /// Number of pulls that the daemon's test reported.
    pulled: Option<u64>,
}

/// A shell script that runs all jobs one after the other, whether or not they fail.
fn script(jobs: &[Job]) -> String {
    jobs.iter()
        .map(|job| {
            let command = &job.command;
            format!("echo '{BEGIN}'\n({command})\necho \"{END}$?\"\n")
        })
        .collect()
}

/// Sums up the results of the jobs of one boot.
struct Tally<'a> {
    jobs: std::slice::Iter<'a, Job>,
    current: Option<(&'a Job, Instant, TestCount)>,
    sum: TestCount,
}

impl<'a> Tally<'a> {
    fn of(jobs: &'a [Job]) -> Self {
        Self {
            jobs: jobs.iter(),
            current: None,
            sum: TestCount::default(),
        }
    }

    fn line(&mut self, line: &str) {
        if line == BEGIN {
            self.current = self
                .jobs
                .next()
                .map(|job| (job, Instant::now(), TestCount::default()));
        } else if let Some(status) = line.strip_prefix(END) {
            self.end(status);
        } else if let Some((job, _, count)) = &mut self.current {
            if job.tests {
                count.line(line);
            }
            let dull = line.is_empty()
                || line.ends_with(" ... ok")
                || line.starts_with("test result: ok")
                || line.starts_with("running ")
                || line.starts_with("committed ");
            if !dull {
                say!("  | {line}");
            }
        }
    }

    /// Records the end of the current job with this exit status.
    fn end(&mut self, status: &str) {
        let Some((job, started_at, mut count)) = self.current.take() else {
            return;
        };
        if !job.tests {
            count.passed = u64::from(status == "0");
        }
        let complete = count.ended || !job.tests;
        if (status != "0" || !complete) && count.failed == 0 {
            count.failed = 1;
            count.failures.push(format!("exit status {status}"));
        }
        say!(
            "  {:4} passed, {} failed: {} ({:.1} s)",
            count.passed,
            count.failed,
            job.name,
            started_at.elapsed().as_secs_f64()
        );
        for failure in &mut count.failures {
            *failure = format!("{}: {failure}", job.name);
        }
        self.sum += &count;
    }

    /// The sum over all jobs.
    fn close(mut self) -> Result<TestCount> {
        if let Some(job) = self.jobs.next() {
            bail!("the guest never came to {}", job.name);
        }
        self.end("none");
        Ok(self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs() -> [Job; 2] {
        ["tests", "tool"].map(|name| Job {
            name: name.to_owned(),
            command: "true".to_owned(),
            tests: name == "tests",
        })
    }

    fn tally(jobs: &[Job], lines: &[&str]) -> Result<TestCount> {
        let mut tally = Tally::of(jobs);
        for line in lines {
            tally.line(line);
        }
        tally.close()
    }

    const RESULT: &str =
        "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";

    #[test]
    fn tests_count_each_and_tools_as_one() {
        let lines = [BEGIN, RESULT, "pmem-vm: end 0", BEGIN, "pmem-vm: end 0"];
        let count = tally(&jobs(), &lines).unwrap();
        assert_eq!((count.passed, count.failed), (4, 0));
    }

    #[test]
    fn what_breaks_off_or_fails_is_named() {
        let lines = [BEGIN, "pmem-vm: end 0", BEGIN, "pmem-vm: end 9"];
        let count = tally(&jobs(), &lines).unwrap();
        assert_eq!((count.passed, count.failed), (0, 2));
        assert_eq!(
            count.failures,
            ["tests: exit status 0", "tool: exit status 9"]
        );
        let count = tally(&jobs(), &[BEGIN, RESULT, "pmem-vm: end 0", BEGIN]).unwrap();
        assert_eq!(count.failures, ["tool: exit status none"]);
    }

    #[test]
    fn a_job_that_never_began_is_an_error() {
        assert!(tally(&jobs(), &[BEGIN, RESULT, "pmem-vm: end 0"]).is_err());
    }
}
