//! Runs the steps of `cargo xtask test`, two at a time.
//!
//! 1. [`WORKERS`] threads run the steps. A free worker takes the first step of the list that may
//!    begin.
//! 2. A step may begin when each step in its `after` has ended, whether it passed or failed. Steps
//!    that the user did not choose count as ended.
//! 3. At most one step that compiles runs at a time, because cargo locks its build folder.
//! 4. The list has each step after the steps in its `after`. Because of this order, at any time
//!    some step may begin.

use std::{collections::BTreeSet, panic, thread};

use parking_lot::{Condvar, Mutex};

use super::Step;

/// Number of steps that run at the same time: usually, one step compiles or runs unit tests, and
/// the end-to-end tests wait for daemons. With three steps on two cores, pulls in the virtual
/// machine with persistent memory exceeded their time limit.
const WORKERS: usize = 2;

/// Increase of the nice value in the steps that yield. On a busy CPU, such a thread gets a third of
/// the time of a thread with the earlier value.
const NICE_INCREASE: i32 = 5;

/// Which steps have begun and ended.
#[derive(Default)]
struct Progress {
    started: BTreeSet<&'static str>,
    ended: BTreeSet<&'static str>,
    /// A worker panicked: the other workers stop after their current steps.
    is_aborted: bool,
}

impl Progress {
    /// The first step of the list that may begin now.
    fn next<'a>(&self, chosen: &[&'a Step]) -> Option<&'a Step> {
        let is_running = |step: &Step| self.is_started(step) && !self.ended.contains(step.name);
        let is_build_folder_free = !chosen.iter().any(|it| it.compiles && is_running(it));
        let may_begin = |step: &Step| {
            !self.is_started(step)
                && (!step.compiles || is_build_folder_free)
                && awaited(step, chosen).all(|name| self.ended.contains(name))
        };
        chosen.iter().find(|step| may_begin(step)).copied()
    }

    fn is_started(&self, step: &Step) -> bool {
        self.started.contains(step.name)
    }
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock());
        self.changed.notify_all();
    }

    /// Waits until a step may begin, marks it as begun, and returns it. `None` when all steps have
    /// begun.
    fn begin<'a>(&self, chosen: &[&'a Step]) -> Option<&'a Step> {
        let mut progress = self.progress.lock();
        loop {
            if progress.is_aborted || chosen.iter().all(|step| progress.is_started(step)) {
                return None;
            }
            if let Some(step) = progress.next(chosen) {
                progress.started.insert(step.name);
                return Some(step);
            }
            self.changed.wait(&mut progress);
        }
    }
}

/// When the thread of a worker panics, stops the other workers.
struct AbortOnPanic<'a>(&'a Shared);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.change(|it| it.is_aborted = true);
        }
    }
}

/// Runs the chosen steps.
///
/// # Panics
/// Panics when `carry_out` panics, after the current steps of the other workers have ended.
pub(super) fn run(chosen: &[&Step], carry_out: impl Fn(&Step) + Sync) {
    let shared = Shared::default();
    let work = || {
        let _abort = AbortOnPanic(&shared);
        while let Some(step) = shared.begin(chosen) {
            if step.yields {
                at_low_priority(|| carry_out(step));
            } else {
                carry_out(step);
            }
            shared.change(|it| it.ended.extend([step.name]));
        }
    };
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(work);
        }
    });
}

/// Runs `what` in a thread of low priority. Processes that this thread starts have its priority.
fn at_low_priority(what: impl FnOnce() + Send) {
    let thread = || {
        // Linux has a nice value per thread. Without the change, the step only disturbs the others.
        let _ = rustix::process::nice(NICE_INCREASE);
        what();
    };
    let ended = thread::scope(|scope| scope.spawn(thread).join());
    if let Err(panic) = ended {
        panic::resume_unwind(panic);
    }
}

/// Total time of the chosen steps in seconds, if each takes the time that `expected` returns.
pub(super) fn seconds(chosen: &[&Step], expected: impl Fn(&Step) -> u64) -> u64 {
    let mut progress = Progress::default();
    let mut running: Vec<(u64, &'static str)> = Vec::new();
    let mut now = 0;
    loop {
        while running.len() < WORKERS
            && let Some(step) = progress.next(chosen)
        {
            progress.started.insert(step.name);
            running.push((now + expected(step), step.name));
        }
        let Some((at, _)) = running.iter().enumerate().min_by_key(|(_, it)| it.0) else {
            return now;
        };
        let (end, name) = running.swap_remove(at);
        now = end;
        progress.ended.insert(name);
    }
}

/// The chosen steps that must end before `step` begins.
fn awaited(step: &Step, chosen: &[&Step]) -> impl Iterator<Item = &'static str> {
    let is_chosen = |name: &&'static str| chosen.iter().any(|it| it.name == *name);
    step.after.iter().copied().filter(is_chosen)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        panic::{AssertUnwindSafe, catch_unwind},
        process::Command,
        sync::mpsc,
        time::Duration,
    };

    use super::{
        super::{Outcome, STEPS},
        *,
    };

    /// Longest wait for a response.
    const WAIT_LIMIT: Duration = Duration::from_secs(60);

    fn step(name: &'static str, compiles: bool, after: &'static [&'static str]) -> Step {
        Step {
            name,
            about: "",
            seconds: 10,
            warm_seconds: 1,
            compiles,
            yields: false,
            after,
            run: |_| Ok(Outcome::Passed),
        }
    }

    #[test]
    fn steps_run_at_once_and_wait_for_those_before_them() {
        let steps = [
            step("asks", true, &[]),
            step("answers", false, &[]),
            step("last", true, &["answers", "not-chosen"]),
        ];
        let (ask, asked) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        let (asked, answered) = (Mutex::new(asked), Mutex::new(answered));
        let ended = Mutex::new(Vec::new());
        // Each of the two steps waits until the other step has begun.
        run(&steps.iter().collect::<Vec<_>>(), |step| {
            match step.name {
                "asks" => {
                    ask.send(()).unwrap();
                    answered.lock().recv_timeout(WAIT_LIMIT).unwrap();
                }
                "answers" => {
                    asked.lock().recv_timeout(WAIT_LIMIT).unwrap();
                    answer.send(()).unwrap();
                }
                _ => {}
            }
            ended.lock().push(step.name);
        });
        let ended = ended.into_inner();
        assert_eq!(ended.len(), 3);
        assert_eq!(ended[2], "last");
    }

    #[test]
    fn the_programs_of_a_step_that_yields_have_a_low_priority() {
        let nice_value = || -> i32 {
            let output = Command::new("nice").output().expect("nice starts");
            let text = String::from_utf8_lossy(&output.stdout);
            text.trim().parse().expect("a nice value")
        };
        let mut yielding = step("yields", false, &[]);
        yielding.yields = true;
        let steps = [step("first", false, &[]), yielding];
        let found = Mutex::new(BTreeMap::new());
        run(&steps.iter().collect::<Vec<_>>(), |step| {
            found.lock().insert(step.name, nice_value());
        });
        let found = found.into_inner();
        assert_eq!(found["first"], nice_value());
        assert_eq!(found["yields"], (nice_value() + NICE_INCREASE).min(19));
    }

    #[test]
    fn steps_that_compile_run_one_after_another() {
        let steps = [
            step("build", true, &[]),
            step("clippy", true, &[]),
            step("doc", true, &[]),
        ];
        let compiling = Mutex::new(());
        let ended = Mutex::new(Vec::new());
        run(&steps.iter().collect::<Vec<_>>(), |step| {
            let _alone = compiling.try_lock().expect("no other step compiles");
            thread::sleep(Duration::from_millis(20));
            ended.lock().push(step.name);
        });
        assert_eq!(ended.into_inner(), ["build", "clippy", "doc"]);
    }

    #[test]
    fn a_step_begins_when_those_before_it_have_ended() {
        let steps = [
            step("first", false, &[]),
            step("second", true, &["first"]),
            step("third", false, &["second"]),
        ];
        let ended = Mutex::new(Vec::new());
        run(&steps.iter().collect::<Vec<_>>(), |step| {
            ended.lock().push(step.name);
        });
        assert_eq!(ended.into_inner(), ["first", "second", "third"]);
    }

    #[test]
    fn a_panic_stops_all_workers() {
        let steps = [step("panics", true, &[]), step("waits", false, &["panics"])];
        let chosen: Vec<_> = steps.iter().collect();
        let started = Mutex::new(Vec::new());
        let all = catch_unwind(AssertUnwindSafe(|| {
            run(&chosen, |step| {
                started.lock().push(step.name);
                panic!("for the test");
            });
        }));
        assert!(all.is_err());
        assert_eq!(started.into_inner(), ["panics"]);
    }

    #[test]
    fn the_expected_time_follows_the_schedule() {
        let steps = [
            step("install", false, &[]),
            step("build", true, &[]),
            step("clippy", true, &[]),
            step("e2e", false, &["install", "clippy"]),
        ];
        let of = |steps: &[&Step]| seconds(steps, |step| step.seconds);
        assert_eq!(of(&steps.iter().collect::<Vec<_>>()), 30);
        // Steps that were not chosen take no time, and other steps do not wait for them.
        assert_eq!(of(&[&steps[3]]), 10);
        // A step that does not compile runs on whichever worker is free.
        let free = [
            step("one", false, &[]),
            step("two", false, &[]),
            step("three", false, &[]),
            step("four", false, &[]),
        ];
        assert_eq!(of(&free.iter().collect::<Vec<_>>()), 20);
    }

    #[test]
    fn each_step_stands_behind_those_that_it_waits_for() {
        for (at, step) in STEPS.iter().enumerate() {
            for name in step.after {
                let earlier = STEPS[..at].iter().any(|it| it.name == *name);
                assert!(earlier, "{} waits for {name}, which comes later", step.name);
            }
        }
    }
}
