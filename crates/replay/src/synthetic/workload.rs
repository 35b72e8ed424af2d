//! Generates the requests of a synthetic workload by a simulation of events: nodes pull images, and
//! new releases are rolled out to many nodes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::catalogue::{Blob, Catalogue};
use super::node::Node;
use super::random::{Random, Zipf, whole};
use super::{ParameterOutOfRange, WorkloadParameters};
use pierhead_eviction::Access;
use pierhead_eviction::building_blocks::hash::mix;

const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;

/// The requests of a workload, ordered by tick. Ticks are seconds from the beginning of a working
/// day.
///
/// The memory use of a workload depends on the parameters, and not on the number of requests: a
/// workload keeps the available versions of the images, and the image store of each node. To
/// generate a request takes about as long as to replay the request on a policy made of queues.
pub struct Workload {
    parameters: WorkloadParameters,
    random: Random,
    /// Seed for the random numbers that are drawn once for each repository.
    places: u64,
    catalogue: Catalogue,
    wanted: Zipf,
    /// The demand of nodes with an empty store for each repository.
    wanted_fresh: Zipf,
    nodes: Vec<Node>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Number of events so far. This number orders the events of the same second.
    made: u64,
    pending: VecDeque<Access<u64>>,
    left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A node pulls an image. This event also schedules the next event of the same kind.
    Demand,
    /// A node pulls a version that was just released.
    Rollout { repository: usize, home: usize },
    /// A repository releases a version.
    Release { repository: usize },
    /// A base image is replaced.
    Base { base: usize },
}

impl Workload {
    /// Creates the workload of a seed.
    ///
    /// # Errors
    /// [`ParameterOutOfRange`] when a parameter is out of its range.
    pub fn new(parameters: &WorkloadParameters, seed: u64) -> Result<Self, ParameterOutOfRange> {
        parameters.check()?;
        let mut random = Random::new(seed);
        let places = mix(seed ^ 0x91ac);
        let catalogue = Catalogue::new(parameters, seed, &mut random);
        let nodes = (0..parameters.nodes)
            .map(|_| {
                let bytes = parameters.node_bytes * random.log_uniform(0.5, 2.0);
                Node::new(whole(bytes) as u64)
            })
            .collect();
        let mut workload = Self {
            wanted: Zipf::new(parameters.repositories, parameters.skew),
            wanted_fresh: Zipf::new(parameters.repositories, parameters.fresh_skew),
            parameters: parameters.clone(),
            random,
            places,
            catalogue,
            nodes,
            events: BinaryHeap::new(),
            made: 0,
            pending: VecDeque::new(),
            left: parameters.requests,
        };
        workload.after(0, 0.0, Event::Demand);
        for repository in 0..parameters.repositories {
            let wait = workload
                .random
                .exponential(workload.catalogue.days(repository) * DAY);
            workload.after(0, wait, Event::Release { repository });
        }
        for base in 0..workload.catalogue.bases() {
            let wait = workload.random.exponential(parameters.base_days * DAY);
            workload.after(0, wait, Event::Base { base });
        }
        Ok(workload)
    }

    fn after(&mut self, now: u64, wait: f64, event: Event) {
        self.made += 1;
        let tick = now.saturating_add(whole(wait) as u64);
        self.events.push(Reverse((tick, self.made, event)));
    }

    /// Returns the demand at a time, relative to the maximum demand.
    fn demand(&self, tick: u64) -> f64 {
        let time = tick as f64;
        let (day, hour) = ((time / DAY) % 7.0, (time % DAY) / HOUR);
        let swing =
            1.0 + self.parameters.diurnal * ((hour - 15.0) / 24.0 * std::f64::consts::TAU).cos();
        let week = if day < 5.0 {
            1.0
        } else {
            self.parameters.weekend
        };
        week * swing / (1.0 + self.parameters.diurnal)
    }

    fn happen(&mut self, now: u64, event: Event) {
        match event {
            Event::Demand => {
                // Thinning: events are drawn at the maximum rate. Each event is kept with a
                // probability, which is the current demand divided by the maximum demand.
                let highest = self.parameters.pulls_a_day * (1.0 + self.parameters.diurnal);
                let wait = self.random.exponential(DAY / highest);
                self.after(now, wait, Event::Demand);
                if self.random.chance(self.demand(now)) {
                    self.demanded(now);
                }
            }
            Event::Rollout { repository, home } => self.pull_home(now, repository, home),
            Event::Release { repository } => {
                let mean = self.catalogue.days(repository) * DAY;
                // A release at a time of low demand is postponed, because releases at night are
                // rare.
                if !self.random.chance(self.demand(now)) {
                    self.after(now, HOUR, event);
                    return;
                }
                let wait = self.random.exponential(mean);
                self.after(now, wait, event);
                self.catalogue.release(repository, &mut self.random);
                self.roll_out(now, repository);
            }
            Event::Base { base } => {
                let wait = self.random.exponential(self.parameters.base_days * DAY);
                self.after(now, wait, event);
                self.catalogue.release_base(base, &mut self.random);
            }
        }
    }

    fn demanded(&mut self, now: u64) {
        if self.random.chance(self.parameters.fresh) {
            let repository = self.wanted_fresh.draw(&mut self.random);
            let home = self.random.below(self.nodes.len());
            self.pull(now, None, repository, self.age(repository, home));
        } else {
            let repository = self.wanted.draw(&mut self.random);
            let home = self.random.below(self.homes(repository));
            self.pull_home(now, repository, home);
        }
    }

    fn roll_out(&mut self, now: u64, repository: usize) {
        let mut wait = 0.0;
        for home in 0..self.homes(repository) {
            wait += self.random.exponential(self.parameters.rollout_seconds);
            self.after(now, wait, Event::Rollout { repository, home });
        }
    }

    /// Returns the number of nodes that run a repository.
    fn homes(&self, repository: usize) -> usize {
        let share = self
            .wanted
            .relative(repository)
            .powf(self.parameters.homes_follow);
        whole(self.parameters.homes * share).clamp(1, self.nodes.len())
    }

    fn pull_home(&mut self, now: u64, repository: usize, home: usize) {
        let first = self
            .placement_random(repository, usize::MAX)
            .below(self.nodes.len());
        let node = (first + home) % self.nodes.len();
        self.pull(now, Some(node), repository, self.age(repository, home));
    }

    /// Returns a generator of the random numbers that belong to a repository or to one of its
    /// nodes. Each call gives the same numbers, which differ between seeds.
    fn placement_random(&self, repository: usize, home: usize) -> Random {
        Random::new(mix(self.places ^ repository as u64).wrapping_add(home as u64))
    }

    /// Returns the version, counted from the newest, that a node of a repository uses.
    fn age(&self, repository: usize, home: usize) -> usize {
        let mut random = self.placement_random(repository, home);
        if random.chance(self.parameters.pinned) {
            1 + random.geometric(1.0)
        } else {
            0
        }
    }

    fn pull(&mut self, now: u64, node: Option<usize>, repository: usize, age: usize) {
        let (image, shared) = self.catalogue.pull(repository, age);
        let pending = &mut self.pending;
        let mut asks = |blob: Blob| {
            let mut access = Access::new(blob.key, blob.size, now);
            access.shared = shared.get(&blob.key).copied().unwrap_or(1);
            pending.push_back(access);
        };
        asks(image.manifest);
        match node {
            Some(node) => self.nodes[node].pull(image, &mut asks),
            // A build runner disappears after its work, so it stores no images.
            None => Node::new(0).pull(image, &mut asks),
        }
    }
}

impl Iterator for Workload {
    type Item = Access<u64>;

    fn next(&mut self) -> Option<Access<u64>> {
        self.left = self.left.checked_sub(1)?;
        loop {
            if let Some(access) = self.pending.pop_front() {
                return Some(access);
            }
            let Reverse((now, _, event)) = self.events.pop()?;
            self.happen(now, event);
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_assigns_other_nodes_and_versions_to_repositories() {
        let placed = |seed| {
            let workload =
                Workload::new(&WorkloadParameters::default(), seed).expect("defaults fit");
            let nodes = workload.nodes.len();
            let place = |repository| {
                workload
                    .placement_random(repository, usize::MAX)
                    .below(nodes)
            };
            let places: Vec<usize> = (0..50).map(place).collect();
            let ages: Vec<usize> = (0..50).map(|home| workload.age(0, home)).collect();
            (places, ages)
        };
        let (one, other) = (placed(1), placed(2));
        assert_eq!(one, placed(1));
        assert_ne!(one.0, other.0);
        assert_ne!(one.1, other.1);
    }
}
