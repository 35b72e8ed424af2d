//! Which steps run beside each other.
//!
//! 1. A lane runs its steps one after another, in the order of the list. The lanes run beside each other.
//! 2. A step begins when each step of its `after` has ended, whether it holds or not. A step that was not chosen is not waited
//!    for.
//! 3. Each step stands in the list behind the steps of its `after`, so that no lane waits for ever.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Condvar, Mutex, PoisonError},
    thread,
};

use super::Step;

/// What a step mostly does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// It compiles. Two such steps would wait for each other: cargo locks the build folder.
    Compilers,
    /// It waits for the network, for daemons and for virtual machines.
    Daemons,
}

const LANES: [Lane; 2] = [Lane::Compilers, Lane::Daemons];

/// How far the lanes have come.
#[derive(Default)]
struct Progress {
    ended: BTreeSet<&'static str>,
    /// A lane panicked: the other ends after its current step.
    aborted: bool,
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Whether the next step may begin; waits until that is known.
    fn begins(&self, after: &[&str]) -> bool {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let waits =
            |it: &mut Progress| !it.aborted && after.iter().any(|name| !it.ended.contains(name));
        let progress = self.changed.wait_while(progress, waits);
        !progress.unwrap_or_else(PoisonError::into_inner).aborted
    }
}

/// Ends the other lane when its own thread panics.
struct Abort<'a>(&'a Shared);

impl Drop for Abort<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.change(|it| it.aborted = true);
        }
    }
}

/// Carries out the chosen steps.
///
/// # Panics
/// When `carry_out` panics, once the other lane's current step has ended.
pub(super) fn run(chosen: &[&Step], carry_out: impl Fn(&Step) + Sync) {
    let shared = Shared::default();
    let run_lane = |lane| {
        let _abort = Abort(&shared);
        for step in chosen.iter().filter(|it| it.lane == lane) {
            if !shared.begins(&awaited(step, chosen)) {
                break;
            }
            carry_out(step);
            shared.change(|it| it.ended.extend([step.name]));
        }
    };
    thread::scope(|scope| {
        for lane in LANES {
            let run_lane = &run_lane;
            scope.spawn(move || run_lane(lane));
        }
    });
}

/// How many seconds the chosen steps take, if each takes as long as it says.
pub(super) fn seconds(chosen: &[&Step]) -> u64 {
    let mut lanes = BTreeMap::new();
    let mut ends = BTreeMap::new();
    for step in chosen {
        let lane = lanes.entry(step.lane).or_insert(0);
        let awaited = awaited(step, chosen);
        let ready = awaited.iter().filter_map(|name| ends.get(name)).max();
        *lane = (*lane).max(ready.copied().unwrap_or(0)) + step.seconds;
        ends.insert(step.name, *lane);
    }
    ends.into_values().max().unwrap_or(0)
}

/// The steps that a step waits for.
fn awaited(step: &Step, chosen: &[&Step]) -> Vec<&'static str> {
    let is_chosen = |name: &&&str| chosen.iter().any(|it| it.name == **name);
    step.after.iter().filter(is_chosen).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::mpsc,
        time::Duration,
    };

    use super::{
        super::{Outcome, STEPS},
        *,
    };

    /// Longest wait for a response.
    const LONG: Duration = Duration::from_secs(60);

    fn step(name: &'static str, lane: Lane, after: &'static [&'static str]) -> Step {
        Step {
            name,
            about: "",
            seconds: 10,
            lane,
            after,
            run: |_| Ok(Outcome::Passed),
        }
    }

    #[test]
    fn lanes_run_beside_each_other_in_their_order() {
        let steps = [
            step("asks", Lane::Compilers, &[]),
            step("answers", Lane::Daemons, &[]),
            step("last", Lane::Compilers, &["answers", "not-chosen"]),
        ];
        let (ask, asked) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        let (asked, answered) = (Mutex::new(asked), Mutex::new(answered));
        let ended = Mutex::new(Vec::new());
        // Neither comes to its end unless both have begun.
        run(&steps.iter().collect::<Vec<_>>(), |step| {
            match step.name {
                "asks" => {
                    ask.send(()).unwrap();
                    answered.lock().unwrap().recv_timeout(LONG).unwrap();
                }
                "answers" => {
                    asked.lock().unwrap().recv_timeout(LONG).unwrap();
                    answer.send(()).unwrap();
                }
                _ => {}
            }
            ended.lock().unwrap().push(step.name);
        });
        let ended = ended.into_inner().unwrap();
        assert_eq!(ended.len(), 3);
        assert_eq!(ended[2], "last");
    }

    #[test]
    fn a_step_begins_when_those_before_it_have_ended() {
        let steps = [
            step("first", Lane::Daemons, &[]),
            step("second", Lane::Compilers, &["first"]),
            step("third", Lane::Daemons, &["second"]),
        ];
        let ended = Mutex::new(Vec::new());
        run(&steps.iter().collect::<Vec<_>>(), |step| {
            ended.lock().unwrap().push(step.name);
        });
        assert_eq!(ended.into_inner().unwrap(), ["first", "second", "third"]);
    }

    #[test]
    fn a_panic_ends_both_lanes() {
        let steps = [
            step("panics", Lane::Compilers, &[]),
            step("waits", Lane::Daemons, &["panics"]),
        ];
        let chosen: Vec<_> = steps.iter().collect();
        let begun = Mutex::new(Vec::new());
        let all = catch_unwind(AssertUnwindSafe(|| {
            run(&chosen, |step| {
                begun.lock().unwrap().push(step.name);
                panic!("for the test");
            });
        }));
        assert!(all.is_err());
        assert_eq!(begun.into_inner().unwrap(), ["panics"]);
    }

    #[test]
    fn a_lane_waits_for_the_other() {
        let steps = [
            step("install", Lane::Daemons, &[]),
            step("build", Lane::Compilers, &[]),
            step("clippy", Lane::Compilers, &[]),
            step("e2e", Lane::Daemons, &["install", "clippy"]),
        ];
        assert_eq!(seconds(&steps.iter().collect::<Vec<_>>()), 30);
        // Steps that were not chosen take no time, and other steps do not wait for them.
        assert_eq!(seconds(&[&steps[3]]), 10);
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
