//! How a fill with pieces ends: wrong bytes, restarts and errors.

use bytes::Bytes;
use pierhead_cache::Error;

use crate::common::{self, open, read_all};
use crate::{MIB, complete, fetch, started, write};

#[tokio::test]
async fn wrong_bytes_in_a_piece_discard_everything() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (fill, tail, pieces, content) = started(&cache, 6, 3 * MIB).await;
    let wrong = Bytes::from(vec![7; content.len()]);
    fetch(pieces.claim(2 * MIB..2 * MIB + 9).unwrap(), &wrong)
        .await
        .unwrap();
    let error = complete(fill, &content).await.unwrap_err();
    assert!(
        matches!(error, Error::WrongDigest { resumed: false, .. }),
        "{error}"
    );
    assert!(tail.committed().await.is_err());
    assert_eq!(common::files_below(folder.path(), "staging"), 0);
    assert_eq!(common::files_below(folder.path(), "origins"), 0);
    assert_eq!((cache.stat().used, cache.stat().reserved), (0, 0));
    let (fill, ..) = started(&cache, 6, 3 * MIB).await;
    assert_eq!((fill.offset(), fill.front()), (0, 0..3 * MIB));
    complete(fill, &content).await.unwrap();
}

#[tokio::test]
async fn a_restart_discards_the_pieces_and_fails_their_writers() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (mut fill, tail, pieces, content) = started(&cache, 7, 3 * MIB).await;
    let wrong = Bytes::from(vec![7; content.len()]);
    fetch(pieces.claim(MIB..MIB + 9).unwrap(), &wrong)
        .await
        .unwrap();
    let mut claim = pieces.claim(2 * MIB..3 * MIB).unwrap();
    write(&mut claim, &wrong, 100_000).await.unwrap();
    let reader = tail.for_range(MIB..2 * MIB);
    assert!(!reader.read_at(MIB, 10).await.unwrap().is_empty());
    fill.restart().await.unwrap();
    assert!(matches!(
        write(&mut claim, &wrong, 9).await,
        Err(Error::Restarted)
    ));
    assert_eq!(claim.end(), claim.position());
    assert!(pieces.claim(MIB..2 * MIB).is_none(), "the size is unknown");
    fill.begin(Some(3 * MIB)).await.unwrap();
    assert_eq!(fill.front(), 0..3 * MIB);
    let again = pieces.claim(MIB..2 * MIB).unwrap();
    drop(claim);
    fetch(again, &content).await.unwrap();
    assert!(matches!(
        reader.read_at(MIB, 10).await,
        Err(Error::Restarted)
    ));
    complete(fill, &content).await.unwrap();
    assert_eq!(read_all(&tail).await.unwrap(), content);
}
