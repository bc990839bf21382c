//! How whoever flushes the servers of a pool one after the other learns that the records have all their copies again: two of three
//! hold at every moment, so no place is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Requests to restore the copies of all records of a pool. Numbers ascend.
#[derive(Debug)]
pub(super) struct Restoring {
    asked: AtomicU64,
    /// The latest request in which copies could not be restored.
    failed: AtomicU64,
    servers: Box<[Server]>,
    waiting: Mutex<Vec<Waker>>,
}

/// The part of the task that keeps the record of one server.
#[derive(Debug, Default)]
struct Server {
    is_kept: AtomicBool,
    done: AtomicU64,
    waker: Mutex<Option<Waker>>,
}

impl Restoring {
    pub(super) fn new(servers: usize) -> Restoring {
        let servers = (0..servers).map(|_| Server::default()).collect();
        Restoring { asked: AtomicU64::new(0), failed: AtomicU64::new(0), servers, waiting: Mutex::default() }
    }

    pub(super) fn keep(&self, server: usize) {
        self.servers[server].is_kept.store(true, Ordering::SeqCst);
    }

    pub(super) fn ask(&self) -> Option<u64> {
        if !self.servers.iter().all(|server| server.is_kept.load(Ordering::SeqCst)) {
            return None;
        }
        let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        for server in &self.servers {
            if let Some(waker) = lock(&server.waker).take() {
                waker.wake();
            }
        }
        Some(number)
    }

    pub(super) fn poll_asked(&self, server: usize, cx: &mut Context<'_>) -> Poll<u64> {
        // Before the number is read: a request in between wakes it.
        *lock(&self.servers[server].waker) = Some(cx.waker().clone());
        let asked = self.asked.load(Ordering::SeqCst);
        if asked > self.servers[server].done.load(Ordering::SeqCst) {
            Poll::Ready(asked)
        } else {
            Poll::Pending
        }
    }

    pub(super) fn end(&self, server: usize, number: u64, is_whole: bool) {
        if !is_whole {
            self.failed.fetch_max(number, Ordering::SeqCst);
        }
        self.servers[server].done.store(number, Ordering::SeqCst);
        lock(&self.waiting).drain(..).for_each(Waker::wake);
    }

    pub(super) fn poll_end(&self, number: u64, cx: &mut Context<'_>) -> Poll<bool> {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        drop(waiting);
        match self.servers.iter().all(|server| server.done.load(Ordering::SeqCst) >= number) {
            true => Poll::Ready(self.failed.load(Ordering::SeqCst) < number),
            false => Poll::Pending,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
