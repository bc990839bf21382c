//! What users of the async-memcached crate do.

use std::net::SocketAddr;

use async_memcached::{AsciiProtocol, Client, Error, Status};

use super::sidecar;
use crate::world::memcacheds;

/// What an async-memcached user does with keys of this prefix.
async fn async_memcached(address: SocketAddr, prefix: &str) {
    let mut client = Client::new(format!("tcp://{address}")).await.expect("connect");
    let key = |name: &str| format!("{prefix}{name}");
    let (one, two, n) = (key("one"), key("two"), key("n"));
    assert_eq!(client.get(&one).await, Ok(None));
    assert_eq!(client.set(&one, "first", Some(60), Some(7)).await, Ok(()));
    assert_eq!(client.add(&one, "late", Some(60), None).await, Err(Error::Protocol(Status::NotStored)));
    assert_eq!(client.add(&two, b"\r\n\0".as_slice(), None, None).await, Ok(()));
    let found = client.get_multi([&two, &key("missing"), &one]).await.expect("a reply");
    let found: Vec<_> = found.into_iter().map(|value| (value.key, value.flags, value.data)).collect();
    let expected = [(&two, 0, b"\r\n\0".to_vec()), (&one, 7, b"first".to_vec())]
        .map(|(k, f, d)| (k.clone().into_bytes(), Some(f), Some(d)));
    assert_eq!(found, expected);
    assert_eq!(client.set(&n, 10_u64, None, None).await, Ok(()));
    assert_eq!(client.increment(&n, 5).await, Ok(15));
    assert_eq!(client.decrement(&n, 20).await, Ok(0));
    assert_eq!(client.set(&n, u64::MAX, None, None).await, Ok(()));
    assert_eq!(client.increment(&n, 1).await, Ok(0));
    let big = vec![b'b'; 900 * 1024];
    assert_eq!(client.set(&two, big.as_slice(), None, None).await, Ok(()));
    let found = client.get(&two).await.expect("a reply").and_then(|value| value.data);
    assert!(found == Some(big), "all of the value");
    let refused = client.set(&two, vec![b'b'; 1 << 20].as_slice(), None, None).await;
    assert!(matches!(refused, Err(Error::Protocol(Status::Error(_)))), "{refused:?}");
    assert_eq!(client.get(&two).await, Ok(None));
    assert_eq!(client.delete(&one).await, Ok(()));
    assert_eq!(client.delete(&one).await, Err(Error::Protocol(Status::NotFound)));
    assert!(client.version().await.expect("a version").starts_with("1.6."));
}

#[tokio::test]
async fn async_memcached_cannot_tell_a_raw_rule_from_memcached() {
    let servers = memcacheds(3);
    async_memcached(servers[0].address, "raw:").await;
    async_memcached(sidecar(&servers).address(), "raw:other:").await;
}

#[tokio::test]
async fn async_memcached_works_through_a_guarded_rule_and_bumps_its_tag() {
    let servers = memcacheds(3);
    let sidecar = sidecar(&servers);
    async_memcached(sidecar.address(), "hot:").await;
    let connect = || Client::new(format!("tcp://{}", sidecar.address()));
    let (mut winner, mut other) = (connect().await.expect("connect"), connect().await.expect("connect"));
    assert_eq!(winner.set("hot:page", "old", Some(60), None).await, Ok(()));
    let version = other.increment("@tag:posts", 1).await.expect("the tag's new version");
    assert!(version > 1_700_000_000_000, "{version} ms");
    let data = |found: Result<Option<async_memcached::Value>, Error>| {
        found.expect("a reply").and_then(|value| value.data)
    };
    assert_eq!(data(winner.get("hot:page").await), None);
    assert_eq!(data(other.get("hot:page").await), Some(b"old".to_vec()));
    assert_eq!(winner.set("hot:page", "new", Some(60), None).await, Ok(()));
    assert_eq!(data(other.get("hot:page").await), Some(b"new".to_vec()));
}
