//! The conformance suite. It knows no store, only the promise of the trait.

use super::World;
use scalefabric_control::store::{
    Change, Entry, Event, Guard, LeaseId, MAX_TRANSACTION, Revision, Store, StoreError, Watch,
};
use std::sync::Arc;
use std::time::Duration;

/// Runs every case on a store of its own.
pub async fn run(make: &(dyn Fn() -> Box<dyn World> + Sync)) {
    values_come_back_with_the_revision_of_their_change(&*make()).await;
    a_listing_is_of_one_revision_and_in_order(&*make()).await;
    a_swap_succeeds_once(&*make()).await;
    a_transaction_happens_whole_or_not_at_all(&*make()).await;
    what_cannot_be_is_refused(&*make()).await;
    a_watch_tells_everything_in_order_from_where_it_began(&*make()).await;
    a_watch_that_fell_behind_is_told_so(&*make()).await;
    a_lease_takes_its_keys_with_it(&*make()).await;
    a_lease_that_is_kept_alive_stays(&*make()).await;
    a_lease_that_has_ended_says_so(&*make()).await;
    of_many_that_count_none_is_lost(&*make()).await;
}

fn put(key: &str, value: &str) -> Change {
    Change::Put { key: key.into(), value: value.into(), lease: None }
}

fn guard(key: &str, revision: Revision) -> Guard {
    Guard { key: key.into(), revision }
}

async fn value(store: &Arc<dyn Store>, key: &str) -> Option<String> {
    let entry = store.get(key).await.expect("a reading");
    entry.map(|entry| String::from_utf8(entry.value).expect("text"))
}

/// At least `count` events, or the test hangs and its runner says so.
async fn next(watch: &mut Box<dyn Watch>, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.len() < count {
        events.extend(watch.next().await.expect("news"));
    }
    events
}

async fn values_come_back_with_the_revision_of_their_change(world: &dyn World) {
    let store = world.store();
    assert_eq!(store.get("a").await, Ok(None));
    let first = store.put("a", b"1".to_vec(), None).await.expect("done");
    let second = store.put("a", b"2".to_vec(), None).await.expect("done");
    assert!(second > first && first > Revision(0));
    let entry = Entry { key: "a".into(), value: b"2".to_vec(), revision: second, lease: None };
    assert_eq!(store.get("a").await, Ok(Some(entry)));
    store.put("empty", Vec::new(), None).await.expect("done");
    assert_eq!(value(&store, "empty").await.as_deref(), Some(""));
}

async fn a_listing_is_of_one_revision_and_in_order(world: &dyn World) {
    let store = world.store();
    for key in ["b/2", "b/10", "b/1", "a/1", "c/1", "b"] {
        store.put(key, key.into(), None).await.expect("done");
    }
    let latest = store.put("b/3", b"x".to_vec(), None).await.expect("done");
    let (entries, revision) = store.list("b/").await.expect("a listing");
    let keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["b/1", "b/10", "b/2", "b/3"]);
    assert_eq!(revision, latest);
    assert_eq!(store.list("").await.expect("a listing").0.len(), 7);
    assert!(store.list("d").await.expect("a listing").0.is_empty());
    // More than one page.
    for chunk in (0..5000).collect::<Vec<u32>>().chunks(MAX_TRANSACTION) {
        let changes = chunk.iter().map(|number| put(&format!("many/{number:05}"), "x")).collect();
        store.transact(Vec::new(), changes).await.expect("done");
    }
    let (many, _) = store.list("many/").await.expect("a listing");
    assert!(many.len() == 5000 && many.windows(2).all(|pair| pair[0].key < pair[1].key));
}

async fn a_swap_succeeds_once(world: &dyn World) {
    let store = world.store();
    let first = store.compare_and_swap("a", Revision(0), b"1".to_vec(), None).await.expect("done").expect("first");
    assert_eq!(store.compare_and_swap("a", Revision(0), b"2".to_vec(), None).await, Ok(None));
    assert!(store.compare_and_swap("a", first, b"3".to_vec(), None).await.expect("done").is_some());
    assert_eq!(store.compare_and_swap("a", first, b"4".to_vec(), None).await, Ok(None));
    assert_eq!(value(&store, "a").await.as_deref(), Some("3"));
}

async fn a_transaction_happens_whole_or_not_at_all(world: &dyn World) {
    let store = world.store();
    let at = store.put("guard", b"1".to_vec(), None).await.expect("done");
    let changes = vec![put("x", "1"), put("y", "1"), Change::Delete { key: "guard".into() }];
    let wrong = vec![guard("guard", at), guard("x", Revision(7))];
    assert_eq!(store.transact(wrong, changes.clone()).await, Ok(None));
    assert_eq!((value(&store, "x").await, value(&store, "y").await), (None, None));
    let right = vec![guard("guard", at), guard("x", Revision(0))];
    let done = store.transact(right.clone(), changes.clone()).await.expect("done").expect("guards hold");
    let (x, y) = (store.get("x").await.expect("read"), store.get("y").await.expect("read"));
    assert_eq!((x.map(|x| x.revision), y.map(|y| y.revision)), (Some(done), Some(done)));
    assert_eq!(store.get("guard").await, Ok(None));
    assert_eq!(store.transact(right, changes).await, Ok(None));
    // A key that was deleted counts as not there.
    assert!(store.compare_and_swap("guard", Revision(0), b"2".to_vec(), None).await.expect("done").is_some());
    let nothing = vec![Change::Delete { key: "nowhere".into() }];
    assert!(store.transact(Vec::new(), nothing).await.expect("no error").is_some());
}

async fn what_cannot_be_is_refused(world: &dyn World) {
    let store = world.store();
    let invalid = |outcome: Result<Option<Revision>, StoreError>| matches!(outcome, Err(StoreError::Invalid(_)));
    let many = |count: usize| (0..count).map(|number| put(&format!("k{number}"), "x")).collect::<Vec<_>>();
    assert!(store.transact(Vec::new(), many(MAX_TRANSACTION)).await.expect("fits").is_some());
    assert!(invalid(store.transact(Vec::new(), many(MAX_TRANSACTION + 1)).await));
    assert!(invalid(store.transact(Vec::new(), Vec::new()).await));
    assert!(invalid(store.transact(Vec::new(), vec![put("a", "1"), put("a", "2")]).await));
    for key in ["", "a\nb", "~store"] {
        assert!(invalid(store.transact(Vec::new(), vec![put(key, "1")]).await), "{key:?}");
    }
    let ended = store.put("a", b"1".to_vec(), Some(LeaseId(0x7777_7777))).await;
    assert_eq!(ended, Err(StoreError::LeaseEnded(LeaseId(0x7777_7777))));
    assert!(matches!(store.grant(Duration::from_millis(1500)).await, Err(StoreError::Invalid(_))));
    assert!(matches!(store.grant(Duration::ZERO).await, Err(StoreError::Invalid(_))));
}

async fn a_watch_tells_everything_in_order_from_where_it_began(world: &dyn World) {
    let store = world.store();
    let before = store.put("w/a", b"1".to_vec(), None).await.expect("done");
    store.put("other", b"1".to_vec(), None).await.expect("done");
    let mut watch = store.watch("w/", before).await.expect("a watch");
    let both = vec![put("w/b", "2"), put("w/c", "2"), put("other", "2")];
    let second = store.transact(Vec::new(), both).await.expect("done").expect("no guards");
    let third = store.transact(Vec::new(), vec![Change::Delete { key: "w/a".into() }]).await.expect("done");
    let events = next(&mut watch, 3).await;
    let entry = |key: &str| Event::Put(Entry { key: key.into(), value: b"2".to_vec(), revision: second, lease: None });
    let gone = Event::Delete { key: "w/a".into(), revision: third.expect("no guards") };
    assert_eq!(events, [entry("w/b"), entry("w/c"), gone]);
    // From the past.
    let mut again = store.watch("w/", before).await.expect("a watch");
    assert_eq!(next(&mut again, 3).await, events);
    // All of a revision come together.
    let all = (0..MAX_TRANSACTION).map(|number| put(&format!("w/{number:03}"), "x")).collect();
    store.transact(Vec::new(), all).await.expect("done");
    assert_eq!(watch.next().await.expect("news").len(), MAX_TRANSACTION);
}

async fn a_watch_that_fell_behind_is_told_so(world: &dyn World) {
    let store = world.store();
    let first = store.put("w", b"1".to_vec(), None).await.expect("done");
    let mut latest = first;
    for _ in 0..5 {
        latest = store.put("w", b"2".to_vec(), None).await.expect("done");
    }
    store.compact(latest).await.expect("done");
    store.compact(latest).await.expect("a second time");
    assert_eq!(value(&store, "w").await.as_deref(), Some("2"));
    let outcome = match store.watch("w", first).await {
        Ok(mut watch) => watch.next().await.err(),
        Err(error) => Some(error),
    };
    assert!(matches!(outcome, Some(StoreError::Compacted(_))), "{outcome:?}");
    let mut watch = store.watch("w", latest).await.expect("a watch");
    store.put("w", b"3".to_vec(), None).await.expect("done");
    assert_eq!(next(&mut watch, 1).await.len(), 1);
}

/// How long leases of the cases last. Where time cannot be held, a machine that is busy must not let one end before it is used.
fn ttl(world: &dyn World) -> Duration {
    if world.is_exact() { Duration::from_secs(2) } else { Duration::from_secs(15) }
}

async fn a_lease_takes_its_keys_with_it(world: &dyn World) {
    let (store, ttl) = (world.store(), ttl(world));
    let lease = store.grant(ttl).await.expect("a lease");
    let on = |key: &str| Change::Put { key: key.into(), value: b"1".to_vec(), lease: Some(lease) };
    let at = store.transact(Vec::new(), vec![on("l/a"), on("l/b"), on("l/c")]).await.expect("done").expect("done");
    assert_eq!(store.get("l/a").await.expect("read").and_then(|entry| entry.lease), Some(lease));
    let at = store.put("l/c", b"2".to_vec(), None).await.expect("done").max(at);
    let mut watch = store.watch("l/", at).await.expect("a watch");
    if world.is_exact() {
        world.pass(ttl / 2).await;
        assert!(value(&store, "l/a").await.is_some());
        world.pass(3 * ttl).await;
    }
    let gone = next(&mut watch, 2).await;
    let is_gone = |name: &str| gone.iter().any(|event| matches!(event, Event::Delete { key, .. } if key == name));
    assert!(gone.len() == 2 && is_gone("l/a") && is_gone("l/b"), "{gone:?}");
    assert_eq!(value(&store, "l/c").await.as_deref(), Some("2"));
    // Revoked: at once.
    let lease = store.grant(ttl).await.expect("a lease");
    store.put("l/d", b"1".to_vec(), Some(lease)).await.expect("done");
    store.revoke(lease).await.expect("done");
    assert_eq!(value(&store, "l/d").await, None);
}

async fn a_lease_that_is_kept_alive_stays(world: &dyn World) {
    let (store, ttl) = (world.store(), ttl(world));
    let lease = store.grant(ttl).await.expect("a lease");
    store.put("l", b"1".to_vec(), Some(lease)).await.expect("done");
    for _ in 0..10 {
        world.pass(ttl / 8).await;
        store.keep_alive(lease).await.expect("it lives");
    }
    assert!(value(&store, "l").await.is_some());
}

async fn a_lease_that_has_ended_says_so(world: &dyn World) {
    let store = world.store();
    let lease = store.grant(ttl(world)).await.expect("a lease");
    store.revoke(lease).await.expect("done");
    assert_eq!(store.keep_alive(lease).await, Err(StoreError::LeaseEnded(lease)));
    assert_eq!(store.revoke(lease).await, Err(StoreError::LeaseEnded(lease)));
    assert_eq!(store.put("l", b"1".to_vec(), Some(lease)).await, Err(StoreError::LeaseEnded(lease)));
    assert_eq!(value(&store, "l").await, None);
}

async fn of_many_that_count_none_is_lost(world: &dyn World) {
    const COUNTERS: u64 = 8;
    const EACH: u64 = 20;
    let counting = (0..COUNTERS).map(|_| {
        let store = world.store();
        tokio::spawn(async move {
            for _ in 0..EACH {
                loop {
                    let entry = store.get("count").await.expect("read");
                    let (now, at) = entry.map_or((0, Revision(0)), |entry| {
                        let text = String::from_utf8(entry.value).expect("text");
                        (text.parse::<u64>().expect("a number"), entry.revision)
                    });
                    let next = (now + 1).to_string().into_bytes();
                    if store.compare_and_swap("count", at, next, None).await.expect("done").is_some() {
                        break;
                    }
                }
            }
        })
    });
    for one in counting.collect::<Vec<_>>() {
        one.await.expect("it counted");
    }
    assert_eq!(value(&world.store(), "count").await, Some((COUNTERS * EACH).to_string()));
}
