//! Tests of persistent memory: three boots on the same NVDIMM, of which the second is killed.

use std::{path::Path, time::Instant};

use anyhow::{Result, bail};

use super::machine::Machine;
use crate::{
    check::{count::Count, programs::Program},
    console::say,
    guest::{Ended, Said, quote},
    place,
};

/// The values that the first boot writes to its end, and those that the second is killed over.
const WHOLE: &str = "1";
const WHOLE_STEPS: u64 = 200;
const CUT: &str = "2";

/// Left out: the log's own tests and the properties of its fuzz target have the shadow medium below them, never the
/// NVDIMM, and take minutes under emulation.
const NOT_HERE: &[&str] = &["log::", "fuzzing::"];

/// Left out under the emulator, whose flush instructions touch no memory, so that one of a page that is
/// gone faults on a processor only.
const NOT_EMULATED: &[&str] = &[
    "a_flush_by_instructions_detects_a_truncated_file",
    "a_file_truncated_under_the_map_fails_the_region_permanently",
];

/// The test of the daemon, which runs in all three boots: its package, its program, its name.
pub(super) const STAGED: (&str, &str, &str) = (
    "pierhead-tests",
    "e2e",
    "tier::power_loss::over_three_boots",
);

/// Its region lies in the first, its daemon's folder in the second.
const STAGED_AT: [&str; 2] = ["/mnt/pmem/staged", "/mnt/disk/staged"];

/// The guest's words about its jobs, among what they print.
const BEGIN: &str = "pmem-vm: begin";
const END: &str = "pmem-vm: end ";

/// Runs in the guest.
struct Job {
    name: String,
    command: String,
    /// A test program, whose tests are counted; anything else counts as one.
    tests: bool,
}

impl Job {
    /// The daemon's test, in this boot; `last` is what the second said last.
    fn staged(program: &Program, daemon: &Path, boot: u8, last: &str) -> Self {
        let word = |path: &Path| quote(&path.display().to_string());
        let (path, daemon) = (word(&program.path), word(daemon));
        let (folder, scratch) = (word(&program.folder), word(&place::target().join("e2e")));
        let (test, [fast, disk]) = (STAGED.2, STAGED_AT);
        let anew = if boot == 1 {
            format!("rm -rf {fast} {disk} && mkdir {fast} {disk} && ")
        } else {
            String::new()
        };
        // What it makes for itself lies in memory: the host's folder would keep it after the plug was pulled.
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
        let skip: String = [NOT_HERE, emulated]
            .concat()
            .iter()
            .map(|name| format!(" --skip {name}"))
            .collect();
        // What tests make in temporary folders lies on persistent memory.
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

/// Runs the suite: `programs` within the guest, and `survivor` in all three boots. The machine is
/// killed after `cut` of its commits.
///
/// # Errors
/// When a machine does not boot, or is at it for too long.
pub(super) fn run(
    machine: &Machine,
    programs: &[&Program],
    (survivor, daemon): (&Path, &Path),
    cut: u64,
) -> Result<Count> {
    let of_daemon = |it: &&&Program| it.package == STAGED.0;
    let Some(staged) = programs.iter().find(of_daemon) else {
        bail!("there is no test of the daemon");
    };
    let staged = |boot, last: &str| Job::staged(staged, daemon, boot, last);
    let survivor = |what: &str| Job::survivor(survivor, what);
    let whole = || survivor(&format!("check /mnt/pmem {WHOLE} {}", WHOLE_STEPS - 1));
    let mut sum = Count::default();

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
    // Both are at it when the power goes. Should the daemon's end before it has pulled anything, the third boot tells.
    let pulling = format!("{}/pulling", STAGED_AT[0]);
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

/// A boot that ends by itself.
fn to_the_end(machine: &Machine, name: &str, jobs: &[Job]) -> Result<Count> {
    let mut boot = machine.boot(name, Path::new("/"), &script(jobs))?;
    let mut tally = Tally::of(jobs);
    while let Said::Line(line) = boot.listen()? {
        tally.line(&line);
    }
    let Ended { ready, took, .. } = boot.end()?;
    say!(
        "  {name} boot: ready after {ready} s of its clock, off after {:.1} s",
        took.as_secs_f64()
    );
    tally.close()
}

/// A boot whose last job says `committed N` again and again, until the plug is pulled: the last of
/// them is the second result, unless the job failed before.
fn killed(machine: &Machine, jobs: &[Job], cut: u64) -> Result<(Count, Option<Last>)> {
    let begun = Instant::now();
    let mut boot = machine.boot("second", Path::new("/"), &script(jobs))?;
    let mut tally = Tally::of(jobs);
    let mut commits = 0;
    let mut last = None;
    let mut pulled = None;
    let mut unplugged = false;
    // After the kill there is still what the guest had printed before it.
    while let Said::Line(line) = boot.listen()? {
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
        // Its own end says why: the job failed, or the machine did.
        boot.end()?;
        let count = tally.close()?;
        if count.failed == 0 {
            bail!("the writer ended by itself");
        }
        return Ok((count, None));
    }
    // Being killed is what the last job is there for.
    tally.end("0");
    say!(
        "  second boot: killed after {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    let last = last.map(|committed| Last { committed, pulled });
    Ok((tally.close()?, last))
}

/// What was said last before the power went.
struct Last {
    /// By `survivor`.
    committed: u64,
    /// By the test of the daemon.
    pulled: Option<u64>,
}

/// All jobs, one after the other, whatever becomes of each.
fn script(jobs: &[Job]) -> String {
    jobs.iter()
        .map(|job| {
            let command = &job.command;
            format!("echo '{BEGIN}'\n({command})\necho \"{END}$?\"\n")
        })
        .collect()
}

/// Adds up what the jobs of one boot print.
struct Tally<'a> {
    jobs: std::slice::Iter<'a, Job>,
    current: Option<(&'a Job, Instant, Count)>,
    sum: Count,
}

impl<'a> Tally<'a> {
    fn of(jobs: &'a [Job]) -> Self {
        Self {
            jobs: jobs.iter(),
            current: None,
            sum: Count::default(),
        }
    }

    fn line(&mut self, line: &str) {
        if line == BEGIN {
            self.current = self
                .jobs
                .next()
                .map(|job| (job, Instant::now(), Count::default()));
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

    /// The current job is over, with this exit status.
    fn end(&mut self, status: &str) {
        let Some((job, begun, mut count)) = self.current.take() else {
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
            begun.elapsed().as_secs_f64()
        );
        for failure in &mut count.failures {
            *failure = format!("{}: {failure}", job.name);
        }
        self.sum += &count;
    }

    /// The sum of all jobs.
    fn close(mut self) -> Result<Count> {
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

    fn tally(jobs: &[Job], lines: &[&str]) -> Result<Count> {
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
