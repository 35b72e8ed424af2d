//! Who pulls what and when: the nodes, their demand over the day, and the requests that this makes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::catalogue::{Blob, Catalogue};
use super::lots::{Lots, Zipf, whole};
use super::node::Node;
use super::{Unfit, WorkloadParameters};
use pierhead_eviction::Access;
use pierhead_eviction::building_blocks::hash::mix;

const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;

/// The requests of a workload, in the order of their ticks (seconds from 0, the first of a working day).
///
/// Memory is bounded by the parameters, not by the length: the living versions and the nodes' stores.
/// Drawing a request costs about as much as replaying it through a queue.
pub struct Workload {
    parameters: WorkloadParameters,
    lots: Lots,
    /// Where what is drawn once for a repository is drawn from.
    places: u64,
    catalogue: Catalogue,
    wanted: Zipf,
    /// By machines that hold nothing.
    wanted_fresh: Zipf,
    nodes: Vec<Node>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Events made so far, so that those of the same second keep their order.
    made: u64,
    pending: VecDeque<Access<u64>>,
    left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Somebody pulls something; the next such event follows.
    Demand,
    /// A node takes up a new version.
    Rollout { repository: usize, home: usize },
    /// A repository releases a version.
    Release { repository: usize },
    /// A base is replaced.
    Base { base: usize },
}

impl Workload {
    /// The workload of a seed.
    ///
    /// # Errors
    /// [`Unfit`] when a parameter is out of its range.
    pub fn new(parameters: &WorkloadParameters, seed: u64) -> Result<Self, Unfit> {
        parameters.check()?;
        let mut lots = Lots::new(seed);
        let places = mix(seed ^ 0x91ac);
        let catalogue = Catalogue::new(parameters, seed, &mut lots);
        let nodes = (0..parameters.nodes)
            .map(|_| {
                let bytes = parameters.node_bytes * lots.log_uniform(0.5, 2.0);
                Node::new(whole(bytes) as u64)
            })
            .collect();
        let mut workload = Self {
            wanted: Zipf::new(parameters.repositories, parameters.skew),
            wanted_fresh: Zipf::new(parameters.repositories, parameters.fresh_skew),
            parameters: parameters.clone(),
            lots,
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
                .lots
                .exponential(workload.catalogue.days(repository) * DAY);
            workload.after(0, wait, Event::Release { repository });
        }
        for base in 0..workload.catalogue.bases() {
            let wait = workload.lots.exponential(parameters.base_days * DAY);
            workload.after(0, wait, Event::Base { base });
        }
        Ok(workload)
    }

    fn after(&mut self, now: u64, wait: f64, event: Event) {
        self.made += 1;
        let tick = now.saturating_add(whole(wait) as u64);
        self.events.push(Reverse((tick, self.made, event)));
    }

    /// Demand at a time, as a share of its highest.
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
                // Thinning: drawn at the highest rate, kept by the demand of the hour.
                let highest = self.parameters.pulls_a_day * (1.0 + self.parameters.diurnal);
                let wait = self.lots.exponential(DAY / highest);
                self.after(now, wait, Event::Demand);
                if self.lots.chance(self.demand(now)) {
                    self.demanded(now);
                }
            }
            Event::Rollout { repository, home } => self.pull_home(now, repository, home),
            Event::Release { repository } => {
                let mean = self.catalogue.days(repository) * DAY;
                // Nobody releases at night, or few do.
                if !self.lots.chance(self.demand(now)) {
                    self.after(now, HOUR, event);
                    return;
                }
                let wait = self.lots.exponential(mean);
                self.after(now, wait, event);
                self.catalogue.release(repository, &mut self.lots);
                self.roll_out(now, repository);
            }
            Event::Base { base } => {
                let wait = self.lots.exponential(self.parameters.base_days * DAY);
                self.after(now, wait, event);
                self.catalogue.release_base(base, &mut self.lots);
            }
        }
    }

    fn demanded(&mut self, now: u64) {
        if self.lots.chance(self.parameters.fresh) {
            let repository = self.wanted_fresh.draw(&mut self.lots);
            let home = self.lots.below(self.nodes.len());
            self.pull(now, None, repository, self.age(repository, home));
        } else {
            let repository = self.wanted.draw(&mut self.lots);
            let home = self.lots.below(self.homes(repository));
            self.pull_home(now, repository, home);
        }
    }

    fn roll_out(&mut self, now: u64, repository: usize) {
        let mut wait = 0.0;
        for home in 0..self.homes(repository) {
            wait += self.lots.exponential(self.parameters.rollout_seconds);
            self.after(now, wait, Event::Rollout { repository, home });
        }
    }

    /// How many nodes run a repository.
    fn homes(&self, repository: usize) -> usize {
        let share = self
            .wanted
            .relative(repository)
            .powf(self.parameters.homes_follow);
        whole(self.parameters.homes * share).clamp(1, self.nodes.len())
    }

    fn pull_home(&mut self, now: u64, repository: usize, home: usize) {
        let first = self.placing(repository, usize::MAX).below(self.nodes.len());
        let node = (first + home) % self.nodes.len();
        self.pull(now, Some(node), repository, self.age(repository, home));
    }

    /// What is drawn for a repository, or one of its homes, once and for all: in each seed otherwise.
    fn placing(&self, repository: usize, home: usize) -> Lots {
        Lots::new(mix(self.places ^ repository as u64).wrapping_add(home as u64))
    }

    /// Which version, counted from the newest, a home of a repository stays with.
    fn age(&self, repository: usize, home: usize) -> usize {
        let mut lots = self.placing(repository, home);
        if lots.chance(self.parameters.pinned) {
            1 + lots.geometric(1.0)
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
            // One that is gone after its work keeps nothing.
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
    fn each_seed_gives_the_repositories_other_nodes_and_other_versions() {
        let placed = |seed| {
            let workload =
                Workload::new(&WorkloadParameters::default(), seed).expect("defaults fit");
            let nodes = workload.nodes.len();
            let place = |repository| workload.placing(repository, usize::MAX).below(nodes);
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
