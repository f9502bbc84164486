//! The clock of one machine in the simulated world: it may be ahead or behind, go fast or slow, jump, and stand still
//! while its process is paused.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure_clock::{BootTime, Clock};
use tokio::time::Instant;

/// When every world begins.
pub const GENESIS: Timestamp = Timestamp::constant(1_767_225_600, 0); // 2026-01-01T00:00:00Z

/// True time: what nobody inside the world can read.
#[derive(Clone, Copy, Debug)]
pub struct TrueTime(Instant);

impl TrueTime {
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    pub fn now(self) -> Timestamp {
        GENESIS + self.elapsed()
    }
}

#[derive(Clone, Debug)]
pub struct SimClock {
    time: TrueTime,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// How far the wall clock is off.
    wall: SignedDuration,
    /// How far boot time is off; a database's may jump.
    boot: SignedDuration,
    /// Parts per million.
    drift: i64,
    frozen: Option<Duration>,
}

impl SimClock {
    pub fn new(time: TrueTime, wall: SignedDuration, drift: i64) -> Self {
        // Machines have been up for a while: boot time never meets zero.
        let boot = SignedDuration::from_secs(86_400);
        Self { time, state: Arc::new(Mutex::new(State { wall, boot, drift, frozen: None })) }
    }

    pub fn jump_wall(&self, by: SignedDuration) {
        self.state().wall += by;
    }

    /// What a database's clock does to leases when it is set; its records keep true time here, for the judge.
    pub fn jump_boot(&self, by: SignedDuration) {
        self.state().boot += by;
    }

    pub fn freeze(&self) {
        let now = self.time.elapsed();
        self.state().frozen.get_or_insert(now);
    }

    pub fn thaw(&self) {
        self.state().frozen = None;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while holding a clock")
    }

    /// Since genesis by this clock, and how far its two faces are off.
    fn read(&self) -> (SignedDuration, SignedDuration, SignedDuration) {
        let state = self.state();
        let elapsed = state.frozen.unwrap_or_else(|| self.time.elapsed());
        let nanos = elapsed.as_nanos() as i64;
        let drifted = nanos + nanos / 1_000_000 * state.drift;
        (SignedDuration::from_nanos(drifted), state.wall, state.boot)
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let (elapsed, wall, _) = self.read();
        GENESIS + elapsed + wall
    }

    fn boottime(&self) -> BootTime {
        let (elapsed, _, boot) = self.read();
        BootTime::since_boot(Duration::try_from(elapsed + boot).unwrap_or_default())
    }

    fn suspended(&self) -> Duration {
        Duration::ZERO
    }
}
