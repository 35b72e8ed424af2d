//! A queue with lookup by key: what the policies are made of.

use std::hash::{BuildHasher, Hash, RandomState};

use hashbrown::HashTable;

/// No node: the end of the list.
const NIL: usize = usize::MAX;

/// A doubly linked list of unique keys, held in one vector, and a table of the positions in it.
/// Each operation is O(1) and each key is stored once. Beside the key an entry costs at most 64
/// bytes (`tests::an_entry_costs_little_beside_its_key`), so a million blobs cost some 120 MB with
/// digests as keys.
///
/// The hash is seeded at random against chosen keys; no order depends on it.
#[derive(Debug)]
pub(crate) struct Queue<K> {
    nodes: Vec<Node<K>>,
    positions: HashTable<usize>,
    hasher: RandomState,
    front: usize,
    back: usize,
}

#[derive(Debug)]
struct Node<K> {
    key: K,
    previous: usize,
    next: usize,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            positions: HashTable::new(),
            hasher: RandomState::new(),
            front: NIL,
            back: NIL,
        }
    }
}

impl<K: Eq + Hash> Queue<K> {
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// From front to back.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &K> {
        let node = |at: usize| self.nodes.get(at);
        std::iter::successors(node(self.front), move |last| node(last.next)).map(|node| &node.key)
    }

    /// Appends a key; `false` when it is in already, and then it stays where it is.
    pub(crate) fn push_back(&mut self, key: K) -> bool {
        if self.position(&key).is_some() {
            return false;
        }
        // Doubling would leave room for as many keys as there are.
        if self.nodes.len() == self.nodes.capacity() {
            self.nodes.reserve_exact(self.nodes.len() / 8 + 4);
        }
        let at = self.nodes.len();
        let Self {
            nodes,
            positions,
            hasher,
            ..
        } = self;
        let hash = hasher.hash_one(&key);
        nodes.push(Node {
            key,
            previous: NIL,
            next: NIL,
        });
        positions.insert_unique(hash, at, |at| hasher.hash_one(&nodes[*at].key));
        self.link_back(at);
        true
    }

    /// Moves a key to the back; `false` when it is not in.
    pub(crate) fn move_back(&mut self, key: &K) -> bool {
        let Some(at) = self.position(key) else {
            return false;
        };
        self.unlink(at);
        self.link_back(at);
        true
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<K> {
        self.position(key).map(|at| self.take(at))
    }

    pub(crate) fn pop_front(&mut self) -> Option<K> {
        (self.front != NIL).then(|| self.take(self.front))
    }

    fn position(&self, key: &K) -> Option<usize> {
        self.positions
            .find(self.hasher.hash_one(key), |at| self.nodes[*at].key == *key)
            .copied()
    }

    /// The last node of the vector takes the place of the one that leaves, so that there are no
    /// gaps to keep account of.
    fn take(&mut self, at: usize) -> K {
        self.unlink(at);
        let hash = self.hasher.hash_one(&self.nodes[at].key);
        if let Ok(entry) = self.positions.find_entry(hash, |found| *found == at) {
            entry.remove();
        }
        let last = self.nodes.len() - 1;
        if last != at {
            let hash = self.hasher.hash_one(&self.nodes[last].key);
            if let Some(position) = self.positions.find_mut(hash, |found| *found == last) {
                *position = at;
            }
        }
        let taken = self.nodes.swap_remove(at);
        if last != at {
            let (previous, next) = (self.nodes[at].previous, self.nodes[at].next);
            *self.link_from(previous) = at;
            *self.link_to(next) = at;
        }
        taken.key
    }

    fn unlink(&mut self, at: usize) {
        let (previous, next) = (self.nodes[at].previous, self.nodes[at].next);
        *self.link_from(previous) = next;
        *self.link_to(next) = previous;
    }

    fn link_back(&mut self, at: usize) {
        let before = self.back;
        self.nodes[at].previous = before;
        self.nodes[at].next = NIL;
        *self.link_from(before) = at;
        self.back = at;
    }

    /// Where the position of the node after `at` is kept.
    fn link_from(&mut self, at: usize) -> &mut usize {
        if at == NIL {
            &mut self.front
        } else {
            &mut self.nodes[at].next
        }
    }

    /// Where the position of the node before `at` is kept.
    fn link_to(&mut self, at: usize) -> &mut usize {
        if at == NIL {
            &mut self.back
        } else {
            &mut self.nodes[at].previous
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_costs_little_beside_its_key() {
        type Key = [u8; 65];
        let mut queue = Queue::<Key>::default();
        for n in 0_u32..40_000 {
            let mut key = [0; 65];
            key[..4].copy_from_slice(&n.to_be_bytes());
            queue.push_back(key);
            let taken =
                queue.nodes.capacity() * size_of::<Node<Key>>() + queue.positions.allocation_size();
            let len = queue.len();
            // Small ones round up to whole groups of the table.
            if len >= 64 {
                assert!(
                    taken <= len * (size_of::<Key>() + 64),
                    "{taken} bytes for {len}"
                );
            }
        }
    }
}
