//! Tests of saved states that a policy or an admission filter must refuse: states of other
//! versions, of other policies, and with damaged contents whose checksum is right.

use pierhead_eviction::{
    Access, AdmissionName, PersistentState, Policy, PolicyName, StateError, Victim,
};
use proptest::prelude::*;

const CAPACITY: u64 = 1 << 20;
/// Position of the version number, a `u16`, in a saved state.
const VERSION_AT: usize = 4;

/// Returns a policy with history: 60 keys of different sizes entered, and some of them were
/// requested again.
fn used(named: PolicyName) -> Box<dyn Policy<u32>> {
    let mut policy = named.build::<u32>(CAPACITY, 1);
    for n in 0..200_u32 {
        let access = Access::new(n * n % 90, u64::from(n % 7) * 1000 + 1, n.into());
        if !policy.hit(&access) {
            policy.miss(&access);
            policy.insert(&access);
        }
        if policy.len() > 30 {
            policy.evict(&mut |_| false);
        }
    }
    policy
}

/// Returns the bytes with a checksum that fits their changed contents.
fn sealed(mut saved: Vec<u8>) -> Vec<u8> {
    let body = saved.len() - 4;
    saved.truncate(body);
    let checksum = crc32c::crc32c(&saved);
    saved.extend(checksum.to_le_bytes());
    saved
}

/// Returns each policy and each admission filter, with its name and a saved state.
fn all() -> Vec<(&'static str, Box<dyn PersistentState>, Vec<u8>)> {
    let policies = PolicyName::ALL.iter().map(|named| {
        let policy = used(*named);
        let saved = policy.save();
        (
            named.name(),
            Box::new(policy) as Box<dyn PersistentState>,
            saved,
        )
    });
    let filters = AdmissionName::ALL.iter().map(|named| {
        let mut filter = named.build::<u32>(CAPACITY, 1);
        for n in 0..50 {
            filter.admit(&Access::new(n % 20, 1000, n.into()));
        }
        let saved = filter.save();
        (
            named.name(),
            Box::new(filter) as Box<dyn PersistentState>,
            saved,
        )
    });
    policies.chain(filters).collect()
}

#[test]
fn a_state_of_a_newer_version_is_refused_and_changes_nothing() {
    for (name, mut target, saved) in all() {
        for found in [0, 2, u16::MAX] {
            let mut newer = saved.clone();
            newer[VERSION_AT..VERSION_AT + 2].copy_from_slice(&found.to_le_bytes());
            // The error names the version even if a newer version has another checksum.
            for newer in [newer.clone(), sealed(newer)] {
                let error = target.restore(&newer);
                assert_eq!(error, Err(StateError::Version { found }), "{name}");
            }
        }
        assert!(target.save() == saved, "{name}");
    }
}

#[test]
fn a_state_of_another_policy_or_filter_is_refused_by_its_name() {
    let states: Vec<_> = all()
        .into_iter()
        .map(|(name, _, saved)| (name, saved))
        .collect();
    for (name, mut target, own) in all() {
        for (other, saved) in &states {
            if *other == name {
                assert_eq!(target.restore(saved), Ok(()), "{name}");
                continue;
            }
            let expected = StateError::Kind {
                found: (*other).to_owned(),
                expected: name,
            };
            assert_eq!(target.restore(saved), Err(expected), "{name} from {other}");
        }
        assert!(target.save() == own, "{name}");
    }
}

#[test]
fn bytes_after_the_payload_are_refused() {
    for (name, mut target, saved) in all() {
        let mut longer = saved.clone();
        longer.insert(saved.len() - 4, 0);
        let error = target.restore(&sealed(longer));
        assert!(
            matches!(error, Err(StateError::Content(_))),
            "{name}: {error:?}"
        );
        assert!(target.save() == saved, "{name}");
    }
}

#[test]
fn an_empty_and_a_foreign_file_are_refused() {
    for (name, mut target, saved) in all() {
        for foreign in [&b""[..], b"PHEV", b"{\"version\": 1}", &[0; 64]] {
            let error = target.restore(foreign);
            assert_eq!(error, Err(StateError::Damaged), "{name}: {foreign:?}");
        }
        assert!(target.save() == saved, "{name}");
    }
}

/// Evicts all keys. Checks that each key is a victim once, and that the sums of the policy agree
/// with its victims.
fn is_consistent(policy: &mut dyn Policy<u32>) -> Result<(), TestCaseError> {
    let (len, bytes) = (policy.len(), policy.bytes());
    let victims: Vec<Victim<u32>> = std::iter::from_fn(|| policy.evict(&mut |_| false))
        .take(len + 1)
        .collect();
    prop_assert_eq!(victims.len(), len);
    let sum = victims
        .iter()
        .fold(0, |sum: u64, it| sum.saturating_add(it.size));
    prop_assert_eq!(sum, bytes);
    let mut keys: Vec<u32> = victims.iter().map(|victim| victim.key).collect();
    keys.sort_unstable();
    keys.dedup();
    prop_assert_eq!(keys.len(), len, "each key is a victim once");
    prop_assert_eq!((policy.len(), policy.bytes()), (0, 0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_payload_is_refused_or_gives_a_consistent_policy(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for named in PolicyName::ALL {
            let saved = used(*named).save();
            let payload = VERSION_AT + 3 + named.name().len()..saved.len() - 4;
            let mut damaged = saved.clone();
            for (index, byte) in &changes {
                damaged[payload.start + index.index(payload.len())] = *byte;
            }
            let mut policy = named.build::<u32>(CAPACITY, 1);
            policy.insert(&Access::new(1000, 7, 0));
            let before = policy.save();
            if policy.restore(&sealed(damaged)).is_err() {
                prop_assert!(policy.save() == before, "{}: a refused state changes nothing", named);
            }
            is_consistent(&mut policy)?;
        }
    }
}
