//! Whether a process runs, stands still, or is gone. Everything it wants from others passes here.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Up,
    Paused,
    Dead,
}

/// One life of one process. A restarted one has another gate. Not a `watch`: that wakes those who wait in an order drawn
/// from chance that no seed decides.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Door>);

#[derive(Debug)]
struct Door {
    life: Mutex<Life>,
    changed: Notify,
}

impl Gate {
    pub fn open() -> Self {
        Self(Arc::new(Door { life: Mutex::new(Life::Up), changed: Notify::new() }))
    }

    pub fn life(&self) -> Life {
        *self.0.life.lock().expect("a plain value")
    }

    pub fn is_up(&self) -> bool {
        self.life() == Life::Up
    }

    pub fn is_dead(&self) -> bool {
        self.life() == Life::Dead
    }

    pub fn pause(&self) {
        self.change(Life::Up, Life::Paused);
    }

    pub fn resume(&self) {
        self.change(Life::Paused, Life::Up);
    }

    pub fn kill(&self) {
        *self.0.life.lock().expect("a plain value") = Life::Dead;
        self.0.changed.notify_waiters();
    }

    fn change(&self, from: Life, to: Life) {
        let mut life = self.0.life.lock().expect("a plain value");
        if *life == from {
            *life = to;
            drop(life);
            self.0.changed.notify_waiters();
        }
    }

    /// Waits while the process is paused, and for ever once it is dead.
    pub async fn pass(&self) {
        self.wait_for(|life| life != Life::Paused).await;
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    pub async fn died(&self) {
        self.wait_for(|life| life == Life::Dead).await;
    }

    async fn wait_for(&self, fits: impl Fn(Life) -> bool) {
        loop {
            // Before the look: a change in between is not missed.
            let changed = self.0.changed.notified();
            if fits(self.life()) {
                return;
            }
            changed.await;
        }
    }
}
