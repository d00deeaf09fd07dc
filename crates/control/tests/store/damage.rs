//! Files that the embedded store must refuse, and leave as they are; and what it must find again after it was closed or killed.

use super::Folder;
use scalefabric_control::clock::Manual;
use scalefabric_control::store::{Embedded, Revision, Store, StoreError};
use std::path::Path;
use std::sync::Arc;

fn open(path: &Path) -> Result<Embedded, StoreError> {
    Embedded::open(path, Arc::new(Manual::default()))
}

/// Refused, with the way back, and not a byte was changed.
fn assert_refused(path: &Path) {
    let before = std::fs::read(path).expect("the file");
    match open(path) {
        Err(StoreError::Broken(why)) => assert!(why.contains("move it away"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(std::fs::read(path).expect("the file") == before, "the file was changed");
}

async fn filled(path: &Path) -> Revision {
    let store = open(path).expect("a new store");
    let mut revision = Revision(0);
    for number in 0..200 {
        let value = format!("value {number} ").repeat(20).into_bytes();
        revision = store.put(&format!("key/{number:03}"), value, None).await.expect("done");
    }
    revision
}

#[tokio::test]
async fn what_was_answered_is_there_after_it_was_opened_again() {
    let folder = Folder::new();
    let path = folder.file("store");
    let revision = filled(&path).await;
    let store = open(&path).expect("the same store");
    let (entries, at) = store.list("key/").await.expect("a listing");
    assert_eq!((entries.len(), at), (200, revision));
    assert!(store.put("key/next", b"1".to_vec(), None).await.expect("done") > revision);
}

#[tokio::test]
async fn leases_begin_anew_after_it_was_opened_again() {
    let folder = Folder::new();
    let path = folder.file("store");
    let lease = {
        let store = open(&path).expect("a new store");
        let lease = store.grant(std::time::Duration::from_secs(5)).await.expect("a lease");
        store.put("a", b"1".to_vec(), Some(lease)).await.expect("done");
        lease
    };
    let store = open(&path).expect("the same store");
    store.keep_alive(lease).await.expect("it lives");
    store.revoke(lease).await.expect("it lives");
    assert_eq!(store.get("a").await, Ok(None));
    assert_ne!(store.grant(std::time::Duration::from_secs(5)).await, Ok(lease));
}

#[tokio::test]
async fn a_store_that_is_open_is_not_opened_twice() {
    let folder = Folder::new();
    let path = folder.file("store");
    let _first = open(&path).expect("a new store");
    assert!(matches!(open(&path), Err(StoreError::Invalid(why)) if why.contains("another process")));
}

#[tokio::test]
async fn bytes_that_changed_are_found_wherever_they_are() {
    let folder = Folder::new();
    let path = folder.file("store");
    filled(&path).await;
    let good = std::fs::read(&path).expect("the file");
    let needle = b"value 77 value 77";
    let inside = good.windows(needle.len()).position(|window| window == needle).expect("a value");
    // In a value, and at the very beginning.
    for place in [inside + 3, 0] {
        let mut bad = good.clone();
        bad[place] ^= 0x40;
        std::fs::write(&path, &bad).expect("the file");
        assert_refused(&path);
    }
    std::fs::write(&path, &good).expect("the file");
    open(&path).expect("the twin that is well");
}

#[tokio::test]
async fn a_file_that_was_cut_or_is_something_else_is_refused() {
    let folder = Folder::new();
    let path = folder.file("store");
    filled(&path).await;
    let good = std::fs::read(&path).expect("the file");
    std::fs::write(&path, &good[..good.len() / 2]).expect("the file");
    assert_refused(&path);
    for other in [&b""[..], b"PK\x03\x04 not a store", &[0; 8192]] {
        std::fs::write(&path, other).expect("the file");
        assert_refused(&path);
    }
}

/// A copy of the file while the store is open: what is left when control is killed.
async fn killed(path: &Path) -> Vec<u8> {
    filled(path).await;
    let store = open(path).expect("the same store");
    store.put("key/last", b"the last word".to_vec(), None).await.expect("done");
    let bytes = std::fs::read(path).expect("the file");
    drop(store);
    std::fs::remove_file(path).expect("the file");
    bytes
}

#[tokio::test]
async fn a_store_whose_control_was_killed_opens_and_one_that_was_damaged_as_well_is_left_as_it_is() {
    let folder = Folder::new();
    let path = folder.file("store");
    let good = killed(&path).await;
    for eighths in 0..8 {
        std::fs::write(&path, &good[..good.len() / 8 * eighths + 100]).expect("the file");
        assert_refused(&path);
    }
    // Wherever a byte changes, the store has all that it had before its last commit, or is refused and left as it is.
    for place in (0..good.len()).step_by(good.len() / 300).chain(0..64) {
        let mut bad = good.clone();
        bad[place] ^= 0x41;
        std::fs::write(&path, &bad).expect("the file");
        match open(&path) {
            Ok(store) => {
                let (entries, _) = store.list("key/").await.expect("a listing");
                // Damage in the last commit looks like a commit that the kill tore: then the one before it counts.
                assert!(matches!(entries.len(), 200 | 201), "byte {place}: {} entries", entries.len());
            }
            Err(StoreError::Broken(why)) => {
                assert!(why.contains("move it away"), "{why}");
                assert!(std::fs::read(&path).expect("the file") == bad, "byte {place}: the file was changed");
            }
            Err(other) => panic!("byte {place}: {other}"),
        }
    }
    std::fs::write(&path, &good).expect("the file");
    let store = open(&path).expect("it was only killed");
    assert_eq!(store.get("key/last").await.expect("a value").expect("it is there").value, b"the last word");
    store.put("key/next", b"1".to_vec(), None).await.expect("done");
    drop(store);
    assert_eq!(open(&path).expect("and again").list("key/").await.expect("a listing").0.len(), 202);
}

#[tokio::test]
async fn a_store_from_the_future_whose_control_was_killed_is_left_as_it_is() {
    let folder = Folder::new();
    let path = folder.file("store");
    filled(&path).await;
    let database = redb::Database::open(&path).expect("redb");
    let writing = database.begin_write().expect("redb");
    let table = redb::TableDefinition::<&str, u64>::new("header");
    writing.open_table(table).expect("redb").insert("format", 2).expect("redb");
    writing.commit().expect("redb");
    let bytes = std::fs::read(&path).expect("the file");
    drop(database);
    std::fs::write(&path, bytes).expect("the file");
    assert_refused(&path);
}

#[tokio::test]
async fn a_store_of_another_format_is_refused_with_its_number() {
    let folder = Folder::new();
    let path = folder.file("store");
    filled(&path).await;
    let database = redb::Database::open(&path).expect("redb");
    let writing = database.begin_write().expect("redb");
    let table = redb::TableDefinition::<&str, u64>::new("header");
    writing.open_table(table).expect("redb").insert("format", 2).expect("redb");
    writing.commit().expect("redb");
    drop(database);
    assert!(matches!(open(&path), Err(StoreError::Broken(why)) if why.contains("format 2")));
    // A redb file of somebody else.
    let path = folder.file("other");
    drop(redb::Database::create(&path).expect("redb"));
    assert!(matches!(open(&path), Err(StoreError::Broken(why)) if why.contains("not one of ours")));
}
